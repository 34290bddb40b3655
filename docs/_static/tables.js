// On phones, tables of words show one block per row: give each cell but the first the heading of its column.
document.addEventListener('DOMContentLoaded', () => {
  for (const table of document.querySelectorAll('table.words')) {
    const headings = [...table.querySelectorAll('thead th')].map((cell) => cell.textContent.trim());
    if (headings.length < 3) continue;
    for (const row of table.querySelectorAll('tbody tr')) {
      [...row.children].forEach((cell, column) => {
        if (column > 0 && headings[column] && cell.textContent.trim()) cell.dataset.heading = headings[column];
      });
    }
  }
});
