"""Jobs in child processes that die, hang, print anything, or cannot start."""

import sys
import time
from pathlib import Path

import psutil
import pytest

from mmpola.kernels import children
from mmpola.kernels.children import run_jobs

SERVED = """
import os, signal, sys, time
sys.path.insert(0, {folder!r})  # without the package, which imports torch
from children import serve

def run(job):
    if job == 'print':
        print('a warning')
        os.write(1, b'\\xff\\x00 from a library\\n')
    if job == 'raise':
        raise ValueError('no such instruction\\nof this GPU')
    if job == 'abort':
        os.abort()
    if job == 'kill':
        os.kill(os.getpid(), signal.SIGKILL)
    if job == 'hang':
        time.sleep(600)
    if job in ('SIGINT', 'SIGTERM'):
        os.kill(os.getpid(), getattr(signal, job))
        time.sleep(600)
    return {{'failure': 'inaccurate' if job == 'fail' else ''}}

def prepare():
    if sys.argv[1] == 'busy':
        raise RuntimeError('the GPU is busy\\nCompile with more options')

serve(prepare, run, sys.argv[2], longest=30 if sys.argv[1] == 'patient' else 3)
"""
FOLDER = str(Path(children.__file__).parent)


def serving(state='idle'):
    return [sys.executable, '-c', SERVED.format(folder=FOLDER), state]


@pytest.mark.parametrize('count', [1, 3])
def test_a_job_that_ends_its_process_is_the_only_one_that_fails(count):
    jobs = ['a', 'print', 'raise', 'b', 'abort', 'kill', 'fail', 'hang', 'c']
    results = list(run_jobs(serving(), jobs, count))
    assert sorted(job for job, _ in results) == sorted(jobs)
    found = {job: result['failure'] for job, result in results}
    assert {job: failure for job, failure in found.items() if failure} == {
        'raise': 'ValueError: no such instruction',
        'abort': 'the process ended with status -6',
        'kill': 'the process ended with status -9',
        'hang': 'the process ended with status -14',
        'fail': 'inaccurate',
    }


@pytest.mark.parametrize('name', ['SIGINT', 'SIGTERM'])
def test_a_process_that_somebody_stops_says_nothing_about_its_job(name):
    results = run_jobs(serving(), ['a', name, 'b'])
    assert next(results) == ('a', {'failure': ''})
    with pytest.raises(RuntimeError, match='a process was stopped'):
        next(results)


def test_a_device_that_does_not_answer_says_nothing_about_the_jobs():
    with pytest.raises(RuntimeError, match=r'^RuntimeError: the GPU is busy$'):
        next(run_jobs(serving('busy'), ['a', 'b'], 2))


ALONE = """
import fcntl, json, sys, time
file = open(sys.argv[1], 'a+')
try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit('the GPU is busy')
print('ready', flush=True)
time.sleep(0.5)  # until the others have found it busy
for job in json.loads(sys.argv[2]):
    print(json.dumps({'job': job}), flush=True)
"""


def test_jobs_of_processes_that_the_gpu_does_not_admit_wait(tmp_path):
    command = [sys.executable, '-c', ALONE, str(tmp_path / 'gpu')]
    results = list(run_jobs(command, [1, 2, 3, 4, 5], 3))
    assert sorted(job for job, _ in results) == [1, 2, 3, 4, 5]
    assert all(result == {'job': job} for job, result in results)


def test_processes_whose_results_nobody_reads_are_ended():
    results = run_jobs(serving('patient'), ['a', 'hang', 'b', 'hang'], 2)
    next(results)
    processes = psutil.Process().children()
    assert len(processes) == 2
    start = time.monotonic()
    results.close()
    assert time.monotonic() - start < 20
    assert not any(process.is_running() for process in processes)
