"""What only evidence needs: Long Range Arena, analysis of attention, ablations of the papers."""
