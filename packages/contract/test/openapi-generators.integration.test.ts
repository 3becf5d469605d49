/**
 * A linter and two generators of clients take the OpenAPI documents. Nightly: they are downloaded, which takes a minute.
 * `RELEAP_TEST_GENERATORS=1` runs it alone.
 */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { copyFile, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { promisify } from 'node:util';
import { isNightly } from '@releap/testing/repetitions';
import { OPENAPI_PLANES, openApiDocument } from '../src/index.ts';

const REPO = resolve(import.meta.dirname, '../../..');
const LOCKS = join(REPO, 'setup/test-clients/generators');
const TOOLS = join(REPO, 'build/test-clients/generators');
const MINUTE = 60_000;
const run = promisify(execFile);

const skip = isNightly() || process.env['RELEAP_TEST_GENERATORS'] !== undefined ? false : 'nightly';

describe('the OpenAPI documents', { skip }, () => {
  let folder = '';
  const documentOf = (plane: string): string => join(folder, `${plane}.json`);
  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'releap-openapi-'));
    await mkdir(TOOLS, { recursive: true });
    for (const file of ['package.json', 'package-lock.json', 'redocly.yaml'])
      await copyFile(join(LOCKS, file), join(TOOLS, file));
    const install = ['ci', '--ignore-scripts', '--no-audit', '--no-fund'];
    await run('npm', install, { cwd: TOOLS, timeout: 10 * MINUTE });
    for (const plane of OPENAPI_PLANES) {
      const document = openApiDocument({
        plane,
        serverUrl: 'https://api.releap.test',
        toolboxUrls: ['https://gateway.releap.test/toolbox'],
      });
      await writeFile(documentOf(plane), JSON.stringify(document));
    }
  });

  after(() => rm(folder, { recursive: true, force: true }));

  const tool = async (script: string, args: string[]): Promise<string> => {
    const { stdout, stderr } = await run(process.execPath, [join(TOOLS, 'node_modules', script), ...args], {
      cwd: TOOLS,
      timeout: 5 * MINUTE,
      maxBuffer: 64 * 1024 * 1024,
    });
    return stdout + stderr;
  };

  it('pass the recommended rules of the linter without a warning', async () => {
    const said = await tool('@redocly/cli/bin/cli.js', ['lint', ...OPENAPI_PLANES.map(documentOf)]);
    assert.doesNotMatch(said, /You have \d+ (warning|error)/, said);
  });

  for (const plane of OPENAPI_PLANES) {
    it(`give TypeScript types without any: ${plane}`, async () => {
      const types = join(folder, `${plane}.ts`);
      await tool('openapi-typescript/bin/cli.js', [documentOf(plane), '-o', types]);
      await tool('typescript/bin/tsc', ['--noEmit', '--strict', types]);
      const code = (await readFile(types, 'utf8')).replaceAll(/\/\*[^]*?\*\//g, '');
      assert.doesNotMatch(code, /\bany\b/);
    });

    it(`give a client of Python: ${plane}`, async () => {
      const python = await pythonTools();
      const client = join(folder, `python-${plane}`);
      const { stdout, stderr } = await run(
        join(python, 'bin/openapi-python-client'),
        ['generate', '--path', documentOf(plane), '--output-path', client, '--meta', 'none'],
        {
          timeout: 5 * MINUTE,
          env: { ...process.env, PATH: `${join(python, 'bin')}:${process.env['PATH']}` },
        },
      );
      // It knows no responses in parts, which the download of many files has.
      const omitted = (stdout + stderr)
        .split('\n')
        .filter((line) => /^(WARNING|ERROR)/.test(line) && !line.includes('/files/bulk-download'));
      assert.deepEqual(omitted, []);
      await run(join(python, 'bin/python'), ['-m', 'compileall', '-q', client], { timeout: 5 * MINUTE });
      assert.ok((await readdir(join(client, 'api'))).length > 1);
    });
  }

  let made: Promise<string> | undefined;
  const pythonTools = (): Promise<string> => (made ??= installPython());
  async function installPython(): Promise<string> {
    const venv = join(TOOLS, 'python');
    await run('virtualenv', [venv], { timeout: 5 * MINUTE });
    const lock = join(LOCKS, 'python.txt');
    const pip = ['install', '--quiet', '--disable-pip-version-check', '--require-hashes', '-r', lock];
    await run(join(venv, 'bin/pip'), pip, { timeout: 10 * MINUTE });
    return venv;
  }
});
