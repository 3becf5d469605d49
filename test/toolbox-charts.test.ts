/** The toolbox's backend for matplotlib with the versions that images have. Nightly: their installation takes a minute. */
import { execFile } from 'node:child_process';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { promisify } from 'node:util';
import { isNightly } from '@releap/testing/repetitions';
import { REPO } from '@releap/testing/service';
import { temporaryFolder } from '@releap/testing/temporary-folder';

const MINUTES = 60_000;

/** Of Debian 12, and a newer one. */
for (const versions of [['matplotlib==3.6.3', 'numpy<2'], ['matplotlib>=3.10']])
  test(`figures that Python code shows with ${versions[0]} become charts`, {
    skip: isNightly() || process.env['RELEAP_TEST_PYTHON'] !== undefined ? false : 'nightly',
  }, async () => {
    const folder = await temporaryFolder('releap-charts-');
    const run = promisify(execFile);
    try {
      const venv = join(folder, 'venv');
      await run('virtualenv', ['--python=/usr/bin/python3', venv], { timeout: 5 * MINUTES });
      const python = join(venv, 'bin/python');
      const install = ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', ...versions];
      await run(python, install, { timeout: 10 * MINUTES });
      const where = 'import os, matplotlib; print(os.path.dirname(os.path.dirname(matplotlib.__file__)))';
      const { stdout } = await run(python, ['-c', where], { timeout: MINUTES });
      await run(
        process.env['RELEAP_TEST_GO'] || 'go',
        ['test', '-count=1', '-run=^TestFiguresThatPythonShowsBecomeCharts$', '.'],
        {
          cwd: join(REPO, 'guest/toolbox'),
          env: {
            ...process.env,
            CGO_ENABLED: '0',
            GOTOOLCHAIN: 'local',
            RELEAP_TEST_MATPLOTLIB: stdout.trim(),
          },
          timeout: 5 * MINUTES,
        },
      );
    } finally {
      await rm(folder, { recursive: true, force: true });
    }
  });
