/** The SSH listener alone: names, limits, and clients that do not follow the protocol. The control plane is a function. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { after, before, describe, it } from 'node:test';
import { plainPeer } from '@releap/certificates/hosts';
import { ApiError, newToken, newUuid } from '@releap/contract';
import { until } from '@releap/testing/eventually';
import pino from 'pino';
import ssh2, { type Client, type ConnectConfig } from 'ssh2';
import type { GrantLease } from '../src/control/grants.ts';
import { generateHostKey, readHostKey } from '../src/ssh/host-key.ts';
import { LoginLimiter, subjectOf } from '../src/ssh/login-limiter.ts';
import { parseSshUser } from '../src/ssh/ssh-user.ts';
import { type SshServer, startSshServer } from '../src/ssh/ssh-server.ts';

const log = pino({ level: 'silent' });

describe('an SSH user name', () => {
  it('is a sandbox, with or without a credential', () => {
    assert.deepEqual(parseSshUser('here-abc'), { sandbox: 'here-abc', token: undefined });
    assert.deepEqual(parseSshUser('here-abc#rlp_x#y'), { sandbox: 'here-abc', token: 'rlp_x#y' });
    assert.deepEqual(parseSshUser('here-abc#'), { sandbox: 'here-abc', token: '' });
    for (const name of ['', '#rlp_x', `${'a'.repeat(129)}#rlp_x`]) assert.equal(parseSshUser(name), null);
  });
});

describe('the limits of failed logins', () => {
  const limits = { failuresPerAddress: 3, failuresPerSandbox: 5 };

  it('block an address, IPv6 by its network, and no other', () => {
    const limiter = new LoginLimiter(limits);
    for (let i = 0; i < 3; i++) limiter.failed(`2001:db8:0:1::${i}`, `sandbox ${i}`);
    assert.equal(limiter.isBlocked('2001:db8:0:1:ffff::9', 'another'), true);
    assert.equal(limiter.isBlocked('2001:db8:0:2::1', 'another'), false);
    assert.equal(limiter.isAddressBlocked('192.0.2.1'), false);
  });

  it('block a sandbox for strangers, and not for an address that has logged in to it', () => {
    const limiter = new LoginLimiter(limits);
    limiter.succeeded('192.0.2.1', 'mine');
    for (let i = 0; i < 5; i++) limiter.failed(`198.51.100.${i}`, 'mine');
    assert.equal(limiter.isBlocked('192.0.2.1', 'mine'), false);
    assert.equal(limiter.isBlocked('192.0.2.2', 'mine'), true);
    assert.equal(limiter.isBlocked('192.0.2.2', 'other'), false);
  });

  it('know addresses in every spelling', () => {
    assert.equal(subjectOf('::ffff:192.0.2.1'), subjectOf('192.0.2.1'));
    assert.equal(subjectOf('2001:0db8::1'), subjectOf('2001:db8:0:0:1::'));
    assert.notEqual(subjectOf('2001:db8::1'), subjectOf('2001:db9::1'));
    assert.equal(subjectOf('::1'), '0:0:0:0::/64');
  });
});

describe('a host key', () => {
  it('can be read, whatever its bytes are', () => {
    // One of 256 is the one that ssh2 alone makes wrongly.
    for (let i = 0; i < 1_500; i++) readHostKey(generateHostKey());
  });

  it('is made once and read again, and a file that is none is refused', () => {
    const key = generateHostKey();
    const { publicKey, fingerprint } = readHostKey(key);
    assert.match(publicKey, /^ssh-ed25519 AAAA\S+$/);
    assert.match(fingerprint, /^SHA256:\S{43}$/);
    assert.deepEqual(readHostKey(key), { publicKey, fingerprint });
    assert.throws(() => readHostKey('not a key'), /ssh-keygen/);
    assert.throws(() => readHostKey(publicKey), /ssh-keygen/);
  });
});

describe('the SSH listener', () => {
  const sandbox = newUuid();
  const key = newToken('apiKey');
  const revoked = new AbortController();
  let asked = 0;
  let server: SshServer;
  /** The same with a short deadline for logins. */
  let impatient: SshServer;

  const start = (loginMs: number): Promise<SshServer> =>
    startSshServer({
      listen: { host: '127.0.0.1', port: 0 },
      hostKeys: [generateHostKey()],
      grants: {
        lease: (target, token): Promise<GrantLease> => {
          asked++;
          if (token !== key) return Promise.reject(new ApiError(401, 'no'));
          if (target.sandbox !== sandbox) return Promise.reject(new ApiError(404, 'no'));
          return Promise.resolve({
            vmId: sandbox,
            host: plainPeer('unix:/nonexistent/runner.sock'),
            dataToken: 'data',
            isPublic: false,
            revoked: revoked.signal,
            retired: revoked.signal,
            usableUntil: Infinity,
            [Symbol.dispose]: () => undefined,
          });
        },
      },
      limits: {
        loginMs,
        refusalMs: 20,
        attempts: 3,
        pendingPerAddress: 4,
        failuresPerAddress: 8,
        connectionsPerSandbox: 2,
        sessions: 2,
      },
      log,
    });
  before(async () => {
    server = await start(60_000);
    impatient = await start(300);
  });
  after(() => Promise.all([server.close(), impatient.close()]));

  interface Raw {
    socket: Socket;
    closed: Promise<unknown>;
    seen: () => string;
  }

  async function raw({ port }: SshServer): Promise<Raw> {
    const socket = connect(port, '127.0.0.1');
    let text = '';
    socket.on('data', (chunk: Buffer) => (text += chunk.toString('latin1')));
    socket.on('error', () => undefined);
    const closed = once(socket, 'close');
    await once(socket, 'connect');
    return { socket, closed, seen: () => text };
  }

  /** @returns the client when it is authenticated, or the error */
  async function login(config: ConnectConfig): Promise<Client | Error> {
    const client = new ssh2.Client();
    const outcome = new Promise<Client | Error>((resolve) => {
      client.on('ready', () => resolve(client));
      client.on('error', resolve);
      client.on('close', () => resolve(new Error('closed')));
    });
    client.connect({ host: '127.0.0.1', port: server.port, ...config });
    return await outcome;
  }

  const isOpen = (outcome: Client | Error): outcome is Client => !(outcome instanceof Error);

  it('ends connections that send garbage, too much, or nothing', async () => {
    const garbage = await raw(server);
    garbage.socket.write('GET / HTTP/1.1\r\n\r\n');
    garbage.socket.write(`${'x'.repeat(10_000)}\r\n`);
    const flood = await raw(server);
    flood.socket.write('SSH-2.0-flood\r\n');
    const noise = setInterval(() => flood.socket.write(Buffer.alloc(16_384, 7)), 5);
    const silent = await raw(impatient);
    const half = await raw(impatient);
    half.socket.write('SSH-2.0-OpenSSH_9.9\r\n');
    half.socket.end();
    await Promise.all([garbage.closed, flood.closed, silent.closed, half.closed]);
    clearInterval(noise);
    assert.match(silent.seen(), /^SSH-2\.0-OpenSSH_Releap\r\n/);
  });

  it('bounds connections that are not authenticated, and serves others afterwards', async () => {
    const open = await Promise.all([server, server, server, server].map(raw));
    await until(() => open.every(({ seen }) => seen() !== ''));
    const fifth = await raw(server);
    await fifth.closed;
    assert.equal(fifth.seen(), '');
    for (const { socket } of open) socket.destroy();
    await Promise.all(open.map(({ closed }) => closed));
    await until(async () => {
      const outcome = await login({ username: `${sandbox}#${key}` });
      if (isOpen(outcome)) outcome.end();
      return isOpen(outcome);
    });
  });

  it('accepts the credential in the user name and as password, and bounds connections of a sandbox', async () => {
    const first = await login({ username: `${sandbox}#${key}` });
    const second = await login({ username: sandbox, password: key });
    assert.ok(isOpen(first) && isOpen(second));
    // Refused after the login, when the sandbox is known.
    const third = await login({ username: `${sandbox}#${key}` });
    if (isOpen(third)) await once(third, 'close');
    first.end();
    second.end();
    await Promise.all([once(first, 'close'), once(second, 'close')]);
  });

  it('says why a session fails, and bounds the sessions of a connection', async () => {
    const client = await login({ username: `${sandbox}#${key}` });
    assert.ok(isOpen(client));
    const run = (): Promise<{ code: number; stderr: string } | Error> =>
      new Promise((resolve) => {
        client.exec('true', (error, channel) => {
          if (error !== undefined) return resolve(error);
          let stderr = '';
          channel.stderr.on('data', (chunk: Buffer) => (stderr += chunk.toString()));
          channel.resume();
          channel.on('close', (code: number) => resolve({ code, stderr }));
        });
      });
    // The runner's socket does not exist.
    assert.deepEqual(await run(), {
      code: 255,
      stderr: 'releap: the machine that runs the sandbox did not answer\n',
    });
    const many = await Promise.all([run(), run(), run()]);
    assert.ok(many.some((outcome) => outcome instanceof Error && /open failure/i.test(outcome.message)));
    client.end();
  });

  it('ends open connections when the credential is revoked', async () => {
    const client = await login({ username: `${sandbox}#${key}` });
    assert.ok(isOpen(client));
    const closed = once(client, 'close');
    revoked.abort();
    await closed;
  });

  it('refuses a wrong key and an unknown sandbox alike, and at last without asking', async () => {
    const wrong = await login({ username: `${sandbox}#${newToken('apiKey')}` });
    const unknown = await login({ username: `${newUuid()}#${key}` });
    const malformed = await login({ username: 'nothing', password: 'nothing' });
    for (const outcome of [wrong, unknown, malformed]) {
      assert.ok(outcome instanceof Error);
      assert.equal(outcome.message, 'All configured authentication methods failed');
    }
    await until(async () => {
      const before = asked;
      await login({ username: `${sandbox}#${newToken('apiKey')}` });
      return asked === before;
    });
  });
});
