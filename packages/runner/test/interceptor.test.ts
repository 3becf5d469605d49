import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { readFile, rm, stat } from 'node:fs/promises';
import { createServer } from 'node:https';
import { existsSync } from 'node:fs';
import { connect, type AddressInfo } from 'node:net';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { connect as tlsConnect } from 'node:tls';
import type { RunnerSecrets } from '@releap/contract';
import { testAuthority, type TestAuthority } from '@releap/testing/certificates';
import { CgroupTree } from '../src/cgroup/cgroup-tree.ts';
import { eventually } from '@releap/testing/eventually';
import { filesWith } from '@releap/testing/find-text';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { pino } from 'pino';
import { Interceptor } from '../src/network/intercept/interceptor.ts';

const HOST = 'api.example.com';
const VM = 'vm-1';
const TOKEN = `rlps_${'Tok3n'.repeat(9).slice(0, 43)}`;
const VALUE = 'a-value-that-is-in-memory-alone';
const UID = 0x6ffe_0010;

let folder: string;
let cgroups: CgroupTree;
let guests: TestAuthority;
let servers: TestAuthority;
let server: ReturnType<typeof createServer>;
const received: string[] = [];
/** What the control plane would answer. */
const state = { value: VALUE, revision: '1', asked: 0, isAway: false };
const domains: string[][] = [];
const log = pino({ level: 'silent' });

before(async () => {
  folder = await temporaryFolder('releap-intercept-');
  cgroups = await CgroupTree.open(folder);
  [guests, servers] = [await testAuthority('guests'), await testAuthority('servers')];
  server = createServer(await servers.issue(HOST), (request, response) => {
    received.push(String(request.headers['x-key']));
    response.end('ok');
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
});
after(async () => {
  server?.close();
  await cgroups.close();
  await rm(folder, { recursive: true, force: true });
});

const guestSocket = (): string => join(folder, 'guests', 'guest.sock');

function open(): Interceptor {
  return new Interceptor({
    cgroups,
    dir: join(folder, 'intercept'),
    guestSocket: guestSocket(),
    uid: UID,
    netdUid: UID + 1,
    extraCa: servers.certificate,
    onDomains: (_vmId, list) => domains.push([...list]),
    log,
    source: {
      certificate: (request) => guests.signIntermediate(request),
      changed(known): Promise<RunnerSecrets> {
        state.asked++;
        if (state.isAway) return Promise.reject(new Error('the control plane is away'));
        const { value, revision } = state;
        const secret = {
          name: 'KEY',
          value,
          allowed_domains: [HOST],
          placeholders: [createHash('sha256').update(TOKEN).digest('hex')],
        };
        const changed = known.filter((one) => one.revision !== revision);
        return Promise.resolve({
          sandboxes: changed.map(({ id }) => ({ id, revision, secrets: [secret] })),
          more: false,
        });
      },
    },
  });
}

/** What the server receives in the place of the placeholder; undefined when the connection fails. */
async function send(vmId = VM): Promise<string | undefined> {
  const socket = connect(guestSocket());
  const { port } = server.address() as AddressInfo;
  socket.write(`${JSON.stringify({ vm_id: vmId, host: HOST, tls: true, address: '127.0.0.1', port })}\n`);
  const client = tlsConnect({ socket, servername: HOST, ca: guests.certificate });
  client.on('error', () => undefined).resume();
  socket.on('error', () => undefined);
  client.write(`GET / HTTP/1.1\r\nHost: ${HOST}\r\nX-Key: ${TOKEN}\r\nConnection: close\r\n\r\n`);
  const before = received.length;
  await once(client, 'close').catch(() => undefined);
  return received.at(before);
}

test('a process of its own gets the secrets, keeps them in memory, and outlives the runner', async (t) => {
  let interceptor = open();
  t.after(() => interceptor.stop());
  assert.equal(await interceptor.pid(), undefined);
  interceptor.put(VM, { KEY: TOKEN });
  await eventually('a placeholder is replaced', async () => {
    const there = await stat(guestSocket()).catch(() => undefined);
    return there !== undefined && (await send()) === VALUE;
  });
  assert.deepEqual(domains[0], [HOST]);
  const pid = (await interceptor.pid()) ?? assert.fail('it does not run');
  const status = await readFile(`/proc/${pid}/status`, 'utf8');
  assert.match(status, new RegExp(`^Uid:\\s+${UID}\\s+${UID}\\s`, 'm'));
  assert.match(status, /^CapEff:\s+0+$/m);
  assert.match(status, /^NoNewPrivs:\s+1$/m);
  assert.match(status, /^Seccomp:\s+2$/m);
  // Nothing of the host but its sockets, Node.js and the code.
  assert.deepEqual(
    ['root', 'home', 'tmp', 'run', 'proc', 'var', 'usr/bin'].filter((name) =>
      existsSync(`/proc/${pid}/root/${name}`),
    ),
    [],
  );
  assert.deepEqual(await cgroups.processes('intercept'), [pid]);
  assert.match(await readFile(`/proc/${pid}/limits`, 'utf8'), /^Max core file size\s+0\s+0/m);
  const { mode, uid } = await stat(guestSocket());
  assert.equal(mode & 0o777, 0o600);
  assert.equal(uid, UID + 1);

  await t.test('a new value is used by sandboxes that run', async () => {
    Object.assign(state, { value: 'a-rotated-value', revision: '2' });
    await eventually('the new value arrives', async () => (await send()) === 'a-rotated-value');
    Object.assign(state, { value: VALUE, revision: '3' });
    await eventually('the first one is back', async () => (await send()) === VALUE);
  });

  await t.test('without control plane and runner it continues; the next runner finds it', async () => {
    state.isAway = true;
    await interceptor.detach();
    assert.equal(await send(), VALUE);
    interceptor = open();
    interceptor.put(VM, { KEY: TOKEN });
    const asked = state.asked;
    await eventually('the next runner asks', () => state.asked > asked);
    assert.equal(await interceptor.pid(), pid);
    assert.equal(await send(), VALUE);
    state.isAway = false;
  });

  await t.test('one that is killed is started again, and gets everything again', async () => {
    process.kill(pid, 'SIGKILL');
    await eventually('another one serves', async () => {
      const now = await interceptor.pid();
      return now !== undefined && now !== pid && (await send()) === VALUE;
    });
  });

  await t.test('nothing of it is in a file, and a sandbox that has ended gets nothing', async () => {
    assert.deepEqual(filesWith(folder, VALUE), []);
    interceptor.remove(VM);
    await eventually('it is refused', async () => (await send()) === undefined);
  });
});
