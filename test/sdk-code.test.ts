/** Code, interpreters and git through the unmodified `@daytonaio/sdk`, in an image that has Python and git. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { promisify } from 'node:util';
import { daytonaOf, fails, PATIENT, sdk, type Untyped } from '@releap/testing/daytona';
import type { Service } from '@releap/testing/service';
import { sharedService } from '@releap/testing/shared-service';
import { recordMethods } from './support/sdk-methods.ts';

const methods = recordMethods(import.meta.filename);
let service: Service;
let sandbox: Untyped;
before(async () => {
  service = await sharedService();
  // GiB. What a create without a snapshot starts from.
  const request = {
    snapshot: 'debian',
    envVars: { A: 'b' },
    resources: { cpu: 1, memory: 0.5, disk: 0.5 },
  };
  sandbox = await daytonaOf(service).create(request, PATIENT);
});
after(async () => {
  await sandbox?.delete();
  await service?.[Symbol.asyncDispose]();
});

describe('codeRun()', () => {
  test('runs Python with arguments, variables and a timeout', async () => {
    const { process } = sandbox;
    const code = 'import os, sys\nprint(os.environ["A"], os.environ["C"], sys.argv[1:])\nsys.exit(3)';
    const { exitCode, result, artifacts } = await process.codeRun(code, { argv: ['x y'], env: { C: 'd' } });
    assert.deepEqual([exitCode, result], [3, "b d ['x y']\n"]);
    // The image has no matplotlib, so this code writes what the toolbox's backend for it would.
    assert.deepEqual(artifacts, { stdout: result, charts: [] });
    const chart = `import os\nos.write(int(os.environ["RELEAP_CHARTS_FD"]), b'{"type":"line","title":"t"}\\n')`;
    const drawn = await process.codeRun(chart);
    assert.deepEqual(drawn.artifacts.charts, [{ type: 'line', title: 't' }], drawn.result);
    const failed = await process.codeRun('import matplotlib');
    assert.equal(failed.exitCode, 1);
    assert.match(failed.result, /ModuleNotFoundError: No module named 'matplotlib'/);
    const late = 'import time\ntime.sleep(60)';
    await fails(() => process.codeRun(late, undefined, 1), sdk.DaytonaError, /timeout/, 408);
  });

  test('is refused for a language that the image has no program for', async () => {
    const daytona = daytonaOf(service);
    for (const language of ['javascript', 'typescript']) {
      const other = await daytona.get(sandbox.id);
      other.process.language = language;
      await fails(
        () => other.process.codeRun('1'),
        sdk.DaytonaError,
        new RegExp(`^POST /process/code-run: the image has no interpreter for ${language}`),
        501,
      );
    }
  });
});

describe('codeInterpreter', () => {
  test('keeps variables, tells outputs and errors apart, and calls back', async () => {
    const { codeInterpreter } = sandbox;
    await codeInterpreter.runCode('x = 41', { envs: { C: 'd' } });
    const heard = { out: '', err: '', error: '' };
    const result = await codeInterpreter.runCode(
      'import sys\nx += 1\nprint(x)\nprint("e", file=sys.stderr)',
      {
        onStdout: ({ output }: Untyped) => (heard.out += output),
        onStderr: ({ output }: Untyped) => (heard.err += output),
      },
    );
    assert.deepEqual(result, { stdout: '42\n', stderr: 'e\n' });
    const { error } = await codeInterpreter.runCode('1/0', {
      onError: ({ name }: Untyped) => (heard.error = name),
    });
    assert.deepEqual(heard, { out: '42\n', err: 'e\n', error: 'ZeroDivisionError' });
    assert.deepEqual([error.name, error.value], ['ZeroDivisionError', 'division by zero']);
    assert.match(error.traceback, /1\/0/);
  });

  test('ends code at its timeout as an error of the SDK, and keeps the variables', async () => {
    const { codeInterpreter } = sandbox;
    await fails(
      () => codeInterpreter.runCode('while True: pass', { timeout: 1 }),
      sdk.DaytonaTimeoutError,
      /timed out|timeout/i,
    );
    assert.equal((await codeInterpreter.runCode('print(x)')).stdout, '42\n');
  });

  test('has contexts with a folder and variables of their own', async () => {
    const { codeInterpreter } = sandbox;
    const context = await codeInterpreter.createContext('/tmp');
    const { stdout } = await codeInterpreter.runCode('import os\nprint(os.getcwd(), "x" in globals())', {
      context,
    });
    assert.equal(stdout, '/tmp False\n');
    const ids = async (): Promise<string[]> =>
      (await codeInterpreter.listContexts()).map(({ id }: Untyped) => id);
    assert.deepEqual(new Set(await ids()), new Set(['default', context.id]));
    await codeInterpreter.deleteContext(context);
    assert.deepEqual(await ids(), ['default']);
    await fails(() => codeInterpreter.deleteContext(context), sdk.DaytonaNotFoundError, /not found/);
  });
});

test('git clones, commits, branches, pushes and pulls', async () => {
  const { git, fs, process } = sandbox;
  const made = await process.executeCommand(
    [
      'git init --quiet --bare --initial-branch=main origin.git',
      'git clone --quiet origin.git first',
      'cd first',
      'echo 1 > one',
      'git add one',
      'git -c user.name=a -c user.email=a@example.org commit --quiet --message=first',
      'git push --quiet origin HEAD:main',
    ].join(' && '),
    '/tmp',
  );
  assert.equal(made.exitCode, 0, made.result);
  await git.clone('/tmp/origin.git', '/tmp/work', 'main');
  await fs.uploadFile(Buffer.from('2'), '/tmp/work/two');
  const [file] = (await git.status('/tmp/work')).fileStatus;
  assert.deepEqual([file.name, file.staging, file.worktree], ['two', 'Untracked', 'Untracked']);
  await git.add('/tmp/work', ['two']);
  const { sha } = await git.commit('/tmp/work', 'second', 'An Author', 'author@example.org');
  assert.match(sha, /^[0-9a-f]{40}$/);
  const ahead = await git.status('/tmp/work');
  assert.deepEqual([ahead.currentBranch, ahead.fileStatus, ahead.ahead], ['main', [], 1]);
  await git.push('/tmp/work');

  await git.createBranch('/tmp/work', 'topic');
  assert.deepEqual((await git.branches('/tmp/work')).branches.toSorted(), ['main', 'topic']);
  await git.checkoutBranch('/tmp/work', 'main');
  await git.deleteBranch('/tmp/work', 'topic');
  await git.pull('/tmp/first');
  assert.equal(String(await fs.downloadFile('/tmp/first/two')), '2');

  await fails(() => git.clone('/tmp/nowhere', '/tmp/x'), sdk.DaytonaNotFoundError, /does not exist/);
  await fails(() => git.status('/tmp'), sdk.DaytonaNotFoundError, /not a git repository/);
  await fails(() => git.checkoutBranch('/tmp/work', 'topic'), sdk.DaytonaNotFoundError, /topic/);
});

test('logs, terminals and interpreters are reached where WebSockets cannot have headers', async () => {
  const { api_key: DAYTONA_API_KEY, compat_url: DAYTONA_API_URL } = service.bootstrap;
  const script = join(import.meta.dirname, 'support/sdk-serverless.ts');
  const { stdout } = await promisify(execFile)(process.execPath, [script, sandbox.id], {
    env: { ...process.env, DAYTONA_API_KEY, DAYTONA_API_URL, VERCEL: '1' },
    timeout: 300_000,
  });
  assert.deepEqual(JSON.parse(stdout), {
    log: ['', 'err', 'out'],
    exitCode: 3,
    has42: true,
    stdout: 'code\n',
    file: 'content',
  });
});

test('each method of these classes is tested', () => methods.assertComplete());
