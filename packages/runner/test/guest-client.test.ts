import assert from 'node:assert/strict';
import { createHash, randomBytes } from 'node:crypto';
import { chmod, mkdir, readFile, readdir, readlink, symlink, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { Readable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import type { EntrypointState, ExecRequest, GuestClient } from '../src/guest/index.ts';
import { startAgent } from '@releap/testing/guest-agent';

async function run(client: GuestClient, request: ExecRequest) {
  const running = client.exec(request);
  const [stdout, stderr, exit] = await Promise.all([
    text(running.stdout),
    text(running.stderr),
    running.exit,
  ]);
  return { stdout, stderr, ...exit };
}

const gone = (pid: number): boolean => {
  try {
    process.kill(pid, 0);
    return false;
  } catch {
    return true;
  }
};

async function until(condition: () => boolean | Promise<boolean>): Promise<void> {
  for (const end = Date.now() + 120_000; !(await condition()); await sleep(10)) {
    assert.ok(Date.now() < end, 'the condition never came true');
  }
}

test('a command gives its streams apart and its exit code', async () => {
  await using agent = await startAgent();
  const client = await agent.connect();
  const result = await run(client, { shell: 'echo out; echo err >&2; exit 3' });
  assert.deepEqual(result, { stdout: 'out\n', stderr: 'err\n', exitCode: 3, timedOut: false });
});

test('arguments, environment and folder arrive verbatim', async () => {
  await using agent = await startAgent();
  const client = await agent.connect();
  const value = 'a "quoted" \\ line\nand π ✓ \u0001';
  const result = await run(client, {
    argv: ['/bin/sh', '-c', 'printf "%s|%s|%s" "$1" "$VALUE" "$PWD"', 'sh', value],
    env: { VALUE: value },
    cwd: agent.folder,
  });
  assert.equal(result.stdout, `${value}|${value}|${agent.folder}`);
});

test('megabytes pass through a command unharmed in both directions', async () => {
  await using agent = await startAgent();
  const client = await agent.connect();
  const running = client.exec({ argv: ['cat'], stdin: true });
  const sent = createHash('sha256');
  const source = Readable.from(
    (function* chunks() {
      for (let index = 0; index < 60; index += 1) {
        const chunk = randomBytes(50_000 + index);
        sent.update(chunk);
        yield chunk;
      }
    })(),
  );
  source.pipe(running.stdin);
  running.stderr.resume();
  const received = createHash('sha256');
  for await (const chunk of running.stdout) received.update(chunk as Buffer);
  assert.equal((await running.exit).exitCode, 0);
  assert.equal(received.digest('hex'), sent.digest('hex'));
});

test('a mount brings its program, which is sent again only where the agent does not have it', async () => {
  await using agent = await startAgent();
  const client = await agent.connect();
  // Megabytes, of which far less fits into the window of a stream.
  const script = `#!/bin/sh\nread config\ntrap 'exit 0' USR1\necho mounted\nwhile :; do sleep 0.01; done\n${'#'.repeat(3_000_000)}\n`;
  const program = { path: path.join(agent.folder, 'program'), digest: 'first', bytes: script.length };
  await writeFile(program.path, script);
  const mount = {
    endpoint: 'http://localhost',
    bucket: 'data',
    prefix: '',
    region: '',
    provider: 'Other' as const,
    read_only: false,
    dir_cache_secs: 0,
    access_key: 'a',
    secret_key: 'b',
  };
  const opened = async (): Promise<number> => {
    const open = await readdir(`/proc/${agent.pid}/fd`);
    const targets = await Promise.all(
      open.map((fd) => readlink(`/proc/${agent.pid}/fd/${fd}`).catch(() => '')),
    );
    return targets.filter((target) => target.includes('memfd:storemount')).length;
  };
  assert.equal(await client.mountStore({ ...mount, path: '/a' }, program), false);
  assert.equal(await client.mountStore({ ...mount, path: '/a' }, program), true);
  assert.equal(await opened(), 1);
  // The agent answers before it has read anything: what else is sent goes nowhere.
  await writeFile(program.path, 'x'.repeat(script.length));
  await client.mountStore({ ...mount, path: '/b' }, program);
  await client.unmountStore('/a');
  assert.equal(await opened(), 1);
  await client.unmountStore('/b');
  assert.equal(await opened(), 0);
  await writeFile(program.path, script.slice(0, -1));
  await assert.rejects(client.mountStore({ ...mount, path: '/a' }, program), {
    code: 'invalid',
    message: /announced were/,
  });
  await assert.rejects(client.mountStore({ ...mount, path: '/a' }, { ...program, path: '/none' }), {
    code: 'aborted',
  });
  await writeFile(program.path, script);
  const stores = [{ ...mount, path: '/a' }];
  await client.configure({ stores, storeProgram: program });
  assert.equal(await opened(), 1);
});

test('output that is not read blocks the command, not the agent', async () => {
  await using agent = await startAgent();
  const client = await agent.connect();
  const flood = client.exec({ shell: 'yes' });
  flood.exit.catch(() => undefined);
  const other = await run(client, { shell: 'echo still here' });
  assert.equal(other.stdout, 'still here\n');
  flood.cancel();
  await assert.rejects(flood.exit, { code: 'aborted' });
  await until(async () => (await client.status()).execs === 0);
});

test('a command that does not exist or cannot run exits with 127 and 126', async () => {
  await using agent = await startAgent();
  const client = await agent.connect();
  const plain = path.join(agent.folder, 'plain');
  await writeFile(plain, 'no program');
  assert.deepEqual(await run(client, { argv: ['no-such-command'] }), {
    stdout: '',
    stderr: 'releap: no-such-command: command not found\n',
    exitCode: 127,
    timedOut: false,
    error: 'no-such-command: command not found',
  });
  const refused = await run(client, { argv: [plain] });
  assert.equal(refused.exitCode, 126);
  assert.match(refused.error ?? '', /not executable/);
  await chmod(plain, 0o755);
  const noFormat = await run(client, { argv: [plain] });
  assert.equal(noFormat.exitCode, 126);
  await writeFile(plain, '#!/no/such/interpreter\n');
  const noInterpreter = await run(client, { argv: [plain] });
  assert.equal(noInterpreter.exitCode, 127);
  assert.match(noInterpreter.error ?? '', /interpreter/);
});

test('a missing folder or user is an error of the request', async () => {
  await using agent = await startAgent();
  const client = await agent.connect();
  await assert.rejects(run(client, { shell: 'true', cwd: '/no/such/folder' }), {
    code: 'not_found',
    message: /working directory/,
  });
  await assert.rejects(run(client, { shell: 'true', user: 'nobody-of-that-name' }), {
    code: 'not_found',
    message: /passwd/,
  });
});

test('a timeout ends the whole process group, also one that ignores SIGTERM', async () => {
  await using agent = await startAgent();
  const client = await agent.connect();
  const inTime = async (timeoutMs: number): Promise<Awaited<ReturnType<typeof run>>> => {
    const shell = 'trap "" TERM; sleep 1000 & echo $!; wait; wait';
    const ended = await run(client, { shell, timeoutMs, killGraceMs: 100 });
    // Its time was over before it had started, on a machine that was suspended.
    return ended.stdout === '' && timeoutMs < 60_000 ? await inTime(4 * timeoutMs) : ended;
  };
  const result = await inTime(1_000);
  assert.equal(result.timedOut, true);
  assert.equal(result.signal, 'SIGKILL');
  assert.equal(result.exitCode, 137);
  const child = Number(result.stdout);
  await until(() => gone(child));
});

test('a cancelled command is ended', async () => {
  await using agent = await startAgent();
  const client = await agent.connect();
  const controller = new AbortController();
  const running = client.exec({ shell: 'echo $$; sleep 1000' }, { signal: controller.signal });
  const pid = Number(
    ((await running.stdout.iterator({ destroyOnReturn: false }).next()).value as Buffer).toString(),
  );
  controller.abort();
  await assert.rejects(running.exit, { code: 'aborted' });
  await until(() => gone(pid));
});

test('a command whose background child keeps its output open still ends', async () => {
  await using agent = await startAgent();
  const client = await agent.connect();
  const result = await run(client, { shell: 'sleep 1000 & echo $!' });
  assert.equal(result.exitCode, 0);
  const child = Number(result.stdout);
  assert.equal(gone(child), false);
  process.kill(child, 'SIGKILL');
  await until(() => gone(child)); // an orphan: reaped by the agent
});

test('signals reach the process group', async () => {
  await using agent = await startAgent();
  const client = await agent.connect();
  const running = client.exec({
    shell: 'trap "echo caught; exit 7" USR1; echo ready; while :; do sleep 0.05; done',
  });
  running.stderr.resume();
  const output = running.stdout.iterator({ destroyOnReturn: false });
  assert.equal(String((await output.next()).value), 'ready\n');
  await running.signal('SIGUSR1');
  assert.equal(String((await output.next()).value), 'caught\n');
  assert.equal((await output.next()).done, true);
  assert.equal((await running.exit).exitCode, 7);
});

test('a terminal is one: it has a size, takes a new one and echoes', async () => {
  await using agent = await startAgent();
  const client = await agent.connect();
  const running = client.exec({
    shell: 'stty size; read line; stty size; echo "got $line"',
    pty: { rows: 30, cols: 100 },
  });
  running.stderr.resume();
  let seen = '';
  const output = (async () => {
    for await (const chunk of running.stdout) seen += String(chunk);
  })();
  await until(() => seen.includes('30 100'));
  await running.resize({ rows: 40, cols: 120 });
  running.stdin.write('hello\n');
  assert.equal((await running.exit).exitCode, 0);
  await output;
  assert.match(seen, /40 120\r\ngot hello\r\n/);
});

test('a lost connection ends no command, and a new one finds the agent as it was', async () => {
  await using agent = await startAgent();
  const first = await agent.connect();
  const file = path.join(agent.folder, 'later');
  const go = path.join(agent.folder, 'go');
  // It must not have ended when the connection does, however slow this test is.
  const running = first.exec({
    shell: `echo going; while [ ! -e ${go} ]; do sleep 0.02; done; echo "still writing"; echo done > ${file}`,
  });
  running.stderr.resume();
  running.exit.catch(() => undefined);
  await running.stdout.iterator({ destroyOnReturn: false }).next();
  first.close();
  await assert.rejects(running.exit, { code: 'disconnected' });
  await writeFile(go, '');
  const second = await agent.connect();
  await until(async () => (await readFile(file, 'utf8').catch(() => '')) === 'done\n');
  await second.ping();
});

test('files keep their bytes, mode and links; a write replaces them whole', async () => {
  await using agent = await startAgent();
  const client = await agent.connect();
  const content = randomBytes(3_000_001);
  const file = path.join(agent.folder, 'deep/er/file');
  assert.equal(await client.files.write(file, content, { mode: '750' }), content.length);
  assert.deepEqual(await readFile(file), content);
  assert.deepEqual(Buffer.concat(await client.files.read(file).toArray()), content);
  assert.equal((await client.files.stat(file)).mode, '750');

  const link = path.join(agent.folder, 'link');
  await symlink(file, link);
  await client.files.write(link, Buffer.from('through the link'));
  assert.equal(await readFile(file, 'utf8'), 'through the link');
  assert.equal((await client.files.stat(link)).type, 'symlink');
  const followed = await client.files.stat(link, { follow: true });
  assert.deepEqual([followed.type, followed.size, followed.mode], ['file', 16, '750']);
  assert.deepEqual(await readdir(path.dirname(file)), ['file']);
});

test('ranges of a file can be read', async () => {
  await using agent = await startAgent();
  const client = await agent.connect();
  const file = path.join(agent.folder, 'file');
  await writeFile(file, '0123456789');
  assert.equal(await text(client.files.read(file, { offset: 3, length: 4 })), '3456');
  assert.equal(await text(client.files.read(file, { offset: 20 })), '');
});

test('an interrupted upload leaves nothing behind', async () => {
  await using agent = await startAgent();
  const client = await agent.connect();
  const file = path.join(agent.folder, 'target');
  const source = Readable.from(
    (async function* chunks() {
      yield Buffer.alloc(100_000);
      await sleep(10);
      throw new Error('the client hung up');
    })(),
  );
  await assert.rejects(client.files.write(file, source), { code: 'aborted' });
  await until(async () => (await readdir(agent.folder)).join() === 'agent.sock');
});

test('a read that is cancelled in the middle does not block the agent', async () => {
  await using agent = await startAgent();
  const client = await agent.connect();
  const file = path.join(agent.folder, 'big');
  await writeFile(file, Buffer.alloc(5_000_000));
  for await (const chunk of client.files.read(file)) {
    assert.ok((chunk as Buffer).length > 0);
    break;
  }
  assert.equal((await client.files.stat(file)).size, 5_000_000);
});

test('folders are listed, made and removed, with errors that tell what was wrong', async () => {
  await using agent = await startAgent();
  const client = await agent.connect();
  const folder = path.join(agent.folder, 'a/b');
  await assert.rejects(client.files.makeDir(folder), { code: 'not_found' });
  await client.files.makeDir(folder, { parents: true, mode: '700' });
  await mkdir(path.join(folder, 'sub'));
  await writeFile(path.join(folder, 'file'), 'x');
  const { entries, truncated } = await client.files.list(folder);
  assert.equal(truncated, false);
  assert.deepEqual(
    entries.map(({ name, type }) => `${name}:${type}`),
    ['file:file', 'sub:directory'],
  );
  await assert.rejects(client.files.remove(folder), { code: 'not_empty' });
  await assert.rejects(client.files.write(folder, Buffer.from('x')), { code: 'is_directory' });
  await assert.rejects(text(client.files.read(folder)), { code: 'is_directory' });
  await assert.rejects(client.files.list(path.join(folder, 'file')), { code: 'not_directory' });
  await assert.rejects(client.files.remove('/', { recursive: true }), { code: 'invalid' });
  await client.files.remove(folder, { recursive: true });
  await assert.rejects(client.files.stat(folder), { code: 'not_found' });
});

test('a large folder comes whole although its list exceeds one frame', async () => {
  await using agent = await startAgent();
  const client = await agent.connect();
  const folder = path.join(agent.folder, 'many');
  await mkdir(folder);
  await run(client, {
    shell: `cd ${folder} && seq -f 'a-rather-long-file-name-number-%g' 1 1000 | xargs touch`,
  });
  const { entries, truncated } = await client.files.list(folder);
  assert.equal(entries.length, 1000);
  assert.equal(truncated, false);
});

test('special files neither hang nor crash the agent', async () => {
  await using agent = await startAgent();
  const client = await agent.connect();
  const fifo = path.join(agent.folder, 'fifo');
  await run(client, { argv: ['mkfifo', fifo] });
  await assert.rejects(text(client.files.read(fifo)), { code: 'invalid' });
  await assert.rejects(client.files.write(fifo, Buffer.from('x')), { code: 'invalid' });
  assert.equal(await client.files.write('/dev/null', Buffer.from('x')), 1);
  assert.match(await text(client.files.read('/proc/self/status')), /^Name:/);
  await assert.rejects(client.files.write('/proc/no/such', Buffer.from('x')), { code: 'not_found' });
});

test('an environment of megabytes reaches the entrypoint, whose output and end are reported', async () => {
  await using agent = await startAgent();
  const client = await agent.connect();
  const states: EntrypointState[] = [];
  client.onEntrypoint((state) => states.push(state));
  let output = '';
  client.onEntrypointOutput(({ stream, data }) => {
    if (stream === 'stdout') output += data.toString('utf8');
  });
  const env = Object.fromEntries(
    Array.from({ length: 20 }, (_, index) => [`BIG_${index}`, String(index % 10).repeat(65_536)]),
  );
  const workingDir = path.join(agent.folder, 'made/for/it');
  const { entrypoint } = await client.configure({
    env: { ...env, WHO: 'sandbox' },
    entrypoint: {
      argv: ['sh', '-c', 'echo "$WHO $EXTRA $PWD ${#BIG_7}"; exit 5'],
      env: { EXTRA: 'own' },
      workingDir,
    },
  });
  assert.notEqual(entrypoint.state, 'none');
  await until(() => states.some(({ state }) => state === 'exited'));
  assert.equal(states.at(-1)?.exitCode, 5);
  await until(() => output === `sandbox own ${workingDir} 65536\n`);
  assert.equal((await run(client, { shell: 'echo $WHO; echo ${#BIG_3}' })).stdout, 'sandbox\n65536\n');
  await assert.rejects(client.configure({}), { code: 'state' });
});

test('an entrypoint that cannot start is reported, and the sandbox still runs commands', async () => {
  await using agent = await startAgent();
  const client = await agent.connect();
  let log = '';
  client.onEntrypointOutput(({ data }) => {
    log += data.toString('utf8');
  });
  const { entrypoint } = await client.configure({ entrypoint: { argv: ['no-such-program'] } });
  assert.deepEqual(entrypoint, {
    state: 'failed',
    exitCode: 127,
    reason: 'no-such-program: command not found',
  });
  await until(() => log.includes('cannot start'));
  assert.equal((await run(client, { shell: 'echo fine' })).stdout, 'fine\n');
});

test('unacknowledged entrypoint output is sent again on the next connection, at its offset', async () => {
  await using agent = await startAgent();
  const first = await agent.connect();
  const kept: string[] = [];
  let refuse = false;
  first.onEntrypointOutput(({ data }) => {
    if (refuse) throw new Error('the log is full');
    kept.push(data.toString('utf8'));
  });
  const go = path.join(agent.folder, 'go');
  await first.configure({
    entrypoint: {
      argv: ['sh', '-c', `echo one; while [ ! -e ${go} ]; do sleep 0.02; done; echo two; sleep 1000`],
    },
  });
  await until(() => kept.join('') === 'one\n');
  refuse = true;
  await writeFile(go, '');
  await until(() => first.closed);
  const second = await agent.connect();
  const replayed: { offset: number; data: string }[] = [];
  second.onEntrypointOutput(({ offset, data }) => {
    replayed.push({ offset, data: data.toString('utf8') });
  });
  await until(() => replayed.length > 0);
  assert.deepEqual(replayed, [{ offset: 4, data: 'two\n' }]);
  assert.equal((await second.hello()).configured, true);
});

test('an entrypoint that floods its output loses nothing while a client reads', async () => {
  await using agent = await startAgent();
  const client = await agent.connect();
  let size = 0;
  client.onEntrypointOutput(async ({ stream, offset, data }) => {
    if (stream !== 'stdout') return;
    assert.equal(offset, size);
    size += data.length;
    await sleep(0);
  });
  await client.configure({ entrypoint: { argv: ['sh', '-c', 'head -c 2000000 /dev/zero'] } });
  await until(() => size === 2_000_000);
});

test('shutdown signals the entrypoint first and reports whether it ended by itself', async () => {
  await using agent = await startAgent();
  const client = await agent.connect();
  let log = '';
  client.onEntrypointOutput(({ data }) => {
    log += data.toString('utf8');
  });
  await client.configure({
    entrypoint: { argv: ['sh', '-c', 'trap "echo bye; exit 0" TERM; echo up; while :; do sleep 0.05; done'] },
  });
  await until(() => log.includes('up'));
  assert.deepEqual(await client.shutdown({ graceMs: 60_000 }), { graceful: true });
  await until(() => agent.child.exitCode === 0);
});

test('connecting to nothing fails with the path in the message', async () => {
  await using agent = await startAgent();
  const { GuestClient } = await import('../src/guest/index.ts');
  const { log } = await import('@releap/testing/guest-agent');
  await assert.rejects(GuestClient.connect(path.join(agent.folder, 'nobody.sock'), { log }), {
    code: 'disconnected',
    message: /nobody\.sock/,
  });
});

test('requests sent behind the HELLO, before it is answered, are answered in order', async () => {
  await using agent = await startAgent();
  const { GuestClient } = await import('../src/guest/index.ts');
  const { log } = await import('@releap/testing/guest-agent');
  const client = await GuestClient.open(agent.socket, { log });
  const configured = client.configure({ env: { A: 'b' } });
  assert.equal((await client.hello()).configured, false);
  assert.equal((await configured).entrypoint.state, 'none');
  client.close();
});
