/** SSH as the remote modes of editors use it, by the configuration that `rlp ssh-config` writes; and what a revoked key ends. */
import assert from 'node:assert/strict';
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { rm, stat } from 'node:fs/promises';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { after, before, describe, test } from 'node:test';
import { promisify } from 'node:util';
import { signInByDevice } from '@releap/testing/browser';
import { eventually } from '@releap/testing/eventually';
import { freePort } from '@releap/testing/ports';
import { REPO, type Service } from '@releap/testing/service';
import { sharedService } from '@releap/testing/shared-service';
import { temporaryFolder } from '@releap/testing/temporary-folder';

const RLP = join(REPO, 'packages/cli/bin/rlp');
const NAME = 'editor';
const GUEST_PORT = 9300;
const GUEST_SOCKET = '/tmp/editor.sock';

describe('SSH as editors use it', () => {
  const stack = new AsyncDisposableStack();
  let service: Service;
  let folder: string;
  let config: string;
  let token: string;
  let keys: { id: string; token: string }[];
  let env: NodeJS.ProcessEnv;

  before(async () => {
    service = stack.use(await sharedService());
    folder = await temporaryFolder('releap-editors-');
    stack.defer(() => rm(folder, { recursive: true, force: true }));
    // A project of its own, whose keys may be revoked.
    ({ access_token: token } = await signInByDevice(service.bootstrap.issuer ?? '', {
      email: 'editor@example.org',
      name: 'Editor',
    }));
    const org = await service.call<{ id: string }>('POST', '/orgs', { name: 'Editors' }, token);
    const project = await service.call<{ id: string }>(
      'POST',
      `/orgs/${org.body.id}/projects`,
      { name: 'a' },
      token,
    );
    const newKey = async (name: string): Promise<{ id: string; token: string }> => {
      const made = await service.call<{ id: string; token: string }>(
        'POST',
        `/projects/${project.body.id}/api-keys`,
        { name },
        token,
      );
      assert.equal(made.status, 200, JSON.stringify(made.body));
      return made.body;
    };
    keys = [await newKey('one'), await newKey('two')];
    const [key] = keys;
    const create = { image: 'busybox', name: NAME, persistent: true, mem_mib: 256, scratch_size_mib: 128 };
    const made = await service.call<{ vm_id: string }>('POST', '/vms', create, key?.token);
    const path = `/vms/${made.body.vm_id}`;
    stack.defer(async () => {
      await service.call('DELETE', path, undefined, keys.at(-1)?.token);
      await service.untilNoTraceOf(made.body.vm_id);
    });
    await eventually('a sandbox that runs', async () => {
      const { body } = await service.call(
        'GET',
        `${path}?wait_exact=running&timeout_ms=30000`,
        undefined,
        key?.token,
      );
      return body['status'] === 'running';
    });
    env = {
      ...process.env,
      HOME: folder,
      XDG_CONFIG_HOME: folder,
      RELEAP_HOME: service.home,
      RELEAP_URL: service.bootstrap.base_url,
      RELEAP_API_KEY: key?.token ?? '',
    };
    await promisify(execFile)(RLP, ['ssh-config', '--write'], { env });
    config = join(folder, '.ssh/releap.config');
  });
  after(() => stack.disposeAsync());

  /** `ssh` is killed at the end of the test, if it still runs. */
  function start(stopping: AsyncDisposableStack, program: string, ...args: string[]): ChildProcess {
    const child = spawn(program, ['-F', config, '-o', 'BatchMode=yes', ...args], { env, stdio: 'pipe' });
    const ended = once(child, 'close');
    stopping.defer(async () => {
      child.kill();
      await ended;
    });
    return child;
  }

  async function run(program: string, args: readonly string[], input = ''): Promise<string> {
    await using stopping = new AsyncDisposableStack();
    const child = start(stopping, program, ...args);
    child.stdin?.end(input);
    const [out, complaint, [code]] = await Promise.all([
      text(child.stdout ?? assert.fail()),
      text(child.stderr ?? assert.fail()),
      once(child, 'close') as Promise<[number | null]>,
    ]);
    assert.equal(code, 0, complaint);
    return out;
  }

  /** Waits until a stream has had a text. @returns what it has had since then */
  async function read(stream: Readable | null, wanted: string): Promise<string> {
    let seen = '';
    for await (const chunk of (stream ?? assert.fail()).iterator({ destroyOnReturn: false })) {
      seen += String(chunk);
      const at = seen.indexOf(wanted);
      if (at >= 0) return seen.slice(at + wanted.length);
    }
    throw new Error(`the stream ended before ${JSON.stringify(wanted)}: ${seen}`);
  }

  /** One line to an address of this machine, and the answer. */
  async function echo(to: { port: number; host?: string } | { path: string }, line: string): Promise<string> {
    const socket = await eventually('a connection', async () => {
      const made: Socket = connect({ host: '127.0.0.1', ...to });
      await once(made, 'connect');
      return made;
    });
    try {
      socket.write(`${line}\n`);
      return await readLine(socket);
    } finally {
      socket.destroy();
    }
  }

  async function readLine(socket: Socket): Promise<string> {
    const [data] = (await once(socket, 'data')) as [Buffer];
    return data.toString();
  }

  test('uploads a server, talks to it over standard input and output, and forwards a port and a socket to it', async () => {
    await using stopping = new AsyncDisposableStack();
    const server = join(folder, 'editor-server');
    await promisify(execFile)(process.env['RELEAP_TEST_GO'] || 'go', ['build', '-o', server, '.'], {
      cwd: join(import.meta.dirname, 'support/editor-server'),
      env: {
        ...process.env,
        CGO_ENABLED: '0',
        GOFLAGS: '-mod=mod',
        GO111MODULE: 'off',
        GOTOOLCHAIN: 'local',
      },
    });
    const { size } = await stat(server);
    // Under another name first, as an editor that is interrupted must not leave half of a program.
    const batch = [
      'mkdir /tmp/.editor',
      `put ${server} /tmp/.editor/part`,
      'chmod 755 /tmp/.editor/part',
      'rename /tmp/.editor/part /tmp/.editor/server',
      'ls -l /tmp/.editor/server',
    ].join('\n');
    assert.match(await run('sftp', ['-b', '-', NAME], batch), new RegExp(`-rwxr-xr-x .* ${size} .*server`));

    const [port, socket] = [await freePort(), join(folder, 'local.sock')];
    const master = join(folder, 'master');
    const session = start(
      stopping,
      'ssh',
      '-o',
      'ControlMaster=auto',
      '-o',
      `ControlPath=${master}`,
      '-o',
      'ServerAliveInterval=1',
      '-L',
      `${port}:127.0.0.1:${GUEST_PORT}`,
      '-L',
      `${socket}:${GUEST_SOCKET}`,
      NAME,
      '/tmp/.editor/server',
      String(GUEST_PORT),
      GUEST_SOCKET,
    );
    await read(session.stderr, 'listening\n');
    assert.equal(await echo({ port }, 'a line'), 'a line over tcp\n');
    assert.equal(await echo({ path: socket }, 'a line'), 'a line over unix\n');

    // Large and small frames, in both directions at once.
    const frames = [1, 100_000, 3, 1_000_000, 0, 7].map((length) => {
      const head = Buffer.alloc(4);
      head.writeUInt32BE(length);
      return Buffer.concat([head, randomBytes(length)]);
    });
    const sent = Buffer.concat(frames);
    const received: Buffer[] = [];
    session.stdout?.on('data', (chunk: Buffer) => received.push(chunk));
    for (const frame of frames) session.stdin?.write(frame);
    await eventually('all frames', () => Buffer.concat(received).length === sent.length);
    assert.ok(Buffer.concat(received).equals(sent));

    // Further sessions share the connection.
    const shared = ['-o', `ControlPath=${master}`];
    const check = await promisify(execFile)('ssh', ['-F', config, ...shared, '-O', 'check', NAME], { env });
    assert.match(check.stderr, /Master running/);
    assert.equal(await run('ssh', [...shared, '-o', 'ProxyCommand=false', NAME, 'echo shared']), 'shared\n');
    const ended = once(session, 'close');
    session.stdin?.end();
    assert.equal((await ended)[0], 0);
  });

  test('runs a script from standard input with -T and -D, and reaches its server through that proxy', async () => {
    await using stopping = new AsyncDisposableStack();
    const proxy = await freePort();
    const session = start(stopping, 'ssh', '-T', '-D', String(proxy), '-o', 'ConnectTimeout=30', NAME, 'sh');
    const output = session.stdout;
    session.stdin?.write(
      'echo "begin $$"; uname -s; mkdir -p /tmp/www && echo page > /tmp/www/index.html\n' +
        `httpd -p 127.0.0.1:${GUEST_PORT + 1} -h /tmp/www && echo "listeningOn==${GUEST_PORT + 1}=="\n`,
    );
    await read(output, `listeningOn==${GUEST_PORT + 1}==\n`);
    const { stdout } = await promisify(execFile)('curl', [
      '-s',
      '--socks5-hostname',
      `127.0.0.1:${proxy}`,
      `http://127.0.0.1:${GUEST_PORT + 1}/`,
    ]);
    assert.equal(stdout, 'page\n');
    // The shell still reads.
    session.stdin?.end('echo "still here"\nexit 4\n');
    await read(output, 'still here\n');
    const [code] = (await once(session, 'close')) as [number | null];
    assert.equal(code, 4);
  });

  test('a revoked API key ends its sessions and forwards, and opens nothing any more; those of another key continue', async () => {
    await using stopping = new AsyncDisposableStack();
    const [revoked, other] = keys;
    assert.ok(revoked && other);
    const port = await freePort();
    const session = start(
      stopping,
      'ssh',
      // Its end is not to be found out by a keep-alive.
      '-o',
      'ServerAliveInterval=0',
      '-L',
      `${port}:127.0.0.1:${GUEST_PORT + 1}`,
      NAME,
      'echo ready; sleep 100000',
    );
    await read(session.stdout, 'ready\n');
    const inside = connect(port, '127.0.0.1');
    await once(inside, 'connect');
    const cut = once(inside.on('error', () => undefined).resume(), 'close');
    env['RELEAP_API_KEY'] = other.token;
    const going = start(stopping, 'ssh', NAME, 'echo ready; cat');
    await read(going.stdout, 'ready\n');

    const answer = await service.call('DELETE', `/api-keys/${revoked.id}`, undefined, token);
    assert.equal(answer.status, 200);
    await eventually('the end of the session', () => session.exitCode !== null);
    assert.equal(session.exitCode, 255);
    await cut;
    going.stdin?.end('goes on\n');
    await read(going.stdout, 'goes on\n');

    env['RELEAP_API_KEY'] = revoked.token;
    await assert.rejects(run('ssh', [NAME, 'true']), /401|not valid|key|denied/i);
    env['RELEAP_API_KEY'] = other.token;
    // A login without rlp: by the key in the user name.
    const where = (await (await fetch(`${await service.toolboxUrl()}/ssh/host-keys`)).json()) as {
      port: number;
    };
    const { body } = await service.call<{ vms: { id: string }[] }>('GET', '/vms', undefined, other.token);
    const direct = async (key: string): Promise<string> => {
      const options = [
        'BatchMode=yes',
        'StrictHostKeyChecking=no',
        'UserKnownHostsFile=/dev/null',
        'LogLevel=ERROR',
      ];
      const { stdout } = await promisify(execFile)('ssh', [
        '-F',
        'none',
        ...options.flatMap((option) => ['-o', option]),
        '-p',
        String(where.port),
        '-l',
        `${body.vms[0]?.id}#${key}`,
        '127.0.0.1',
        'echo in',
      ]);
      return stdout;
    };
    await assert.rejects(direct(revoked.token), /Permission denied/);
    assert.equal(await direct(other.token), 'in\n');
  });
});
