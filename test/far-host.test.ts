/**
 * Sandboxes on a host in another network: the service with its gateway is in the network namespace of this process, a runner in another, and
 * a third one routes between them. First gateways connect to the host, and then it accepts no connections.
 */
import assert from 'node:assert/strict';
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { request as httpRequest, type IncomingMessage } from 'node:http';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { after, before, describe, test } from 'node:test';
import { connect as connectTls } from 'node:tls';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import type { EndpointRecord, SshHostKeys } from '@releap/contract';
import { eventually } from '@releap/testing/eventually';
import { freePort } from '@releap/testing/ports';
import { makeImagelessCache, REPO, Service } from '@releap/testing/service';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { isolateNetwork } from '@releap/testing/isolated-network';
import { inNamespace, RoutedNamespaces } from './support/routed-namespaces.ts';

isolateNetwork(fileURLToPath(import.meta.url));

const RLP = join(REPO, 'packages/cli/bin/rlp');
const PATIENCE_MS = 400_000;
const SMALL = { image: 'busybox', cpu: 0.125, mem_mib: 256, scratch_mib: 64 };
const HTTP_PORT = 8080;
const SOCKET_PORT = 8082;
/** Of a handshake of WebSockets. */
const KEY = 'AAAAAAAAAAAAAAAAAAAAAA==';

let networks: RoutedNamespaces;
interface Host {
  id: string;
  ready: boolean;
  facts: { name?: string };
}

let folder: string;
let service: Service;
let runner: ChildProcess | undefined;
let output = '';
let dataPort: number;
let farId: string;
let vm: { id: string; token: string };

before(async () => {
  networks = RoutedNamespaces.make(`rlp${process.pid}`);
  folder = await temporaryFolder('releap-far-');
  await makeImagelessCache(join(folder, 'cache'));
  dataPort = await freePort();
  service = await Service.start({ RELEAP_INTERNAL_HOST: networks.address });
  const [first] = await hosts();
  assert.ok(first);
  await startRunner(networks.far.address, 'far');
  farId = await eventually(
    'the far host is ready',
    async () => (await hosts()).find(({ id, ready }) => ready && id !== first.id)?.id,
    PATIENCE_MS,
  ).catch((error: unknown) => {
    throw new Error(`${String(error)}\n${output}`);
  });
  // All that is created from here on is placed on the far host.
  await operator('POST', `/operator/hosts/${first.id}/drain`, {});
  vm = await service.create({ ...SMALL, persistent: true });
  const { body } = await service.call('GET', `/vms/${vm.id}`);
  assert.equal(body['runner_id'], farId);
});
after(async () => {
  await stopRunner();
  await service?.[Symbol.asyncDispose]();
  networks?.[Symbol.dispose]();
});

/** As an operator does it: a token, which the new machine joins with, and then its runner. */
async function startRunner(dataHost: string, name: string): Promise<void> {
  const { stdout } = await promisify(execFile)(RLP, ['host', 'join-token'], {
    env: { ...process.env, RELEAP_HOME: service.home },
  });
  const env = {
    ...process.env,
    RELEAP_HOME: join(folder, 'home'),
    RELEAP_CACHE: join(folder, 'cache'),
    RELEAP_BUILDS: '0',
    RELEAP_WARM_POOL: '0',
    RELEAP_DATA_PORT: String(dataPort),
  };
  const releap = (...args: string[]) =>
    inNamespace(networks.far.namespace, process.execPath, join(REPO, 'packages/server/src/main.ts'), ...args);
  const joined = await promisify(execFile)(
    ...releap('join', stdout.trim(), '--data-host', dataHost, '--name', name),
    {
      env,
    },
  );
  assert.match(joined.stdout, /joined https:/);
  const [file, args] = releap('runner');
  runner = spawn(file, args, { env, stdio: ['ignore', 'pipe', 'pipe'] });
  for (const stream of [runner.stdout, runner.stderr])
    stream?.on('data', (chunk: Buffer) => (output = (output + chunk.toString()).slice(-20_000)));
}

async function stopRunner(): Promise<void> {
  if (runner === undefined || runner.exitCode !== null) return;
  const exited = once(runner, 'exit');
  runner.kill('SIGTERM');
  await exited;
}

async function operator<T>(method: string, path: string, body?: object): Promise<T> {
  const token = (await readFile(join(service.home, 'operator.token'), 'utf8')).trim();
  const answer = await fetch(`${service.bootstrap.internal_url}${path}`, {
    method,
    headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  const read = await answer.text();
  assert.equal(answer.status, 200, read);
  return JSON.parse(read) as T;
}

const hosts = async (): Promise<Host[]> =>
  (await operator<{ hosts: Host[] }>('GET', '/operator/hosts')).hosts;
const bearer = (): Record<string, string> => ({ authorization: `Bearer ${service.bootstrap.api_key}` });

const exposed = new Map<number, URL>();

async function expose(port: number): Promise<URL> {
  const known = exposed.get(port);
  if (known !== undefined) return known;
  const { status, body } = await service.call<EndpointRecord>('POST', `/vms/${vm.id}/endpoints`, {
    port,
    public: true,
  });
  assert.equal(status, 200, JSON.stringify(body));
  const url = new URL(body.url);
  exposed.set(port, url);
  return url;
}

/** To a preview, by the address of this machine. */
const toPreview = (url: URL, headers: Record<string, string> = {}) =>
  httpRequest({
    host: '127.0.0.1',
    port: url.port,
    path: '/',
    headers: { host: url.host, ...headers },
    agent: false,
  });

const HANDLER = `mkdir -p /www/cgi-bin && printf '#!/bin/sh\\nprintf "content-type: text/plain\\r\\n\\r\\nhandled"' > /www/cgi-bin/index.cgi
chmod +x /www/cgi-bin/index.cgi && exec httpd -f -p $RLP_FN_PORT -h /www`;

/** What clients do with sandboxes; the second time, servers in them run already. */
function clientsReachSandboxes(): void {
  test('commands', async () => {
    assert.deepEqual(await service.exec(vm.id, 'echo far; exit 3'), { exitCode: 3, result: 'far\n' });
  });

  test('files, of more than one record of TLS', async () => {
    const toolbox = `${await service.toolboxUrl()}/${vm.id}/files`;
    const content = Buffer.alloc(3_000_000, 'releap ');
    const form = new FormData();
    form.set('file', new Blob([content]));
    const put = await fetch(`${toolbox}/upload?path=/tmp/file`, {
      method: 'POST',
      headers: bearer(),
      body: form,
    });
    assert.equal(put.status, 200, await put.text());
    const got = await fetch(`${toolbox}/download?path=/tmp/file`, { headers: bearer() });
    assert.equal(got.status, 200);
    assert.ok(Buffer.from(await got.arrayBuffer()).equals(content));
  });

  test('logs, from the control plane', async () => {
    const { status, body } = await service.call<string>('GET', `/vms/${vm.id}/logs`);
    assert.equal(status, 200);
    assert.ok(body.length > 0);
  });

  test('previews', async () => {
    await service.exec(
      vm.id,
      `mkdir -p /www && echo page > /www/index.html && httpd -p ${HTTP_PORT} -h /www`,
    );
    const url = await expose(HTTP_PORT);
    const page = await eventually('the page', async () => {
      const request = toPreview(url).end();
      const [answer] = (await once(request, 'response')) as [IncomingMessage];
      return answer.statusCode === 200 && (await text(answer));
    });
    assert.equal(page, 'page\n');
  });

  test('WebSockets of previews', async () => {
    // HAProxy passes on no other answer.
    const accept = createHash('sha1').update(`${KEY}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest('base64');
    const head = [
      '101 Switching Protocols',
      'upgrade: websocket',
      'connection: Upgrade',
      `sec-websocket-accept: ${accept}`,
    ];
    const script = `while read line && [ \${#line} -gt 1 ]; do :; done; printf 'HTTP/1.1 ${head.join('\\r\\n')}\\r\\n\\r\\n'; exec cat`;
    await service.exec(
      vm.id,
      `printf '%s\\n' '${script.replaceAll("'", `'\\''`)}' > /root/echo && (nc -ll -p ${SOCKET_PORT} -e /bin/sh /root/echo > /dev/null 2>&1 &)`,
    );
    const url = await expose(SOCKET_PORT);
    const socket = await eventually('a tunnel', async () => {
      const request = toPreview(url, {
        connection: 'Upgrade',
        upgrade: 'websocket',
        'sec-websocket-version': '13',
        'sec-websocket-key': KEY,
      }).end();
      return await new Promise<Socket>((resolve, reject) => {
        request.on('upgrade', (_answer, opened: Socket) => resolve(opened));
        request.on('response', (answer) => {
          text(answer).then((body) => reject(new Error(`${answer.statusCode} ${body}`)), reject);
        });
        request.on('error', reject);
      });
    });
    socket.write('to the far host');
    const [echoed] = (await once(socket, 'data')) as [Buffer];
    assert.equal(echoed.toString(), 'to the far host');
    socket.destroy();
  });

  test('SSH', async () => {
    const answer = await fetch(`${await service.toolboxUrl()}/ssh/host-keys`);
    const { port } = (await answer.json()) as SshHostKeys;
    const options = [
      'StrictHostKeyChecking=no',
      'UserKnownHostsFile=/dev/null',
      'GlobalKnownHostsFile=/dev/null',
    ];
    const { stdout } = await promisify(execFile)('ssh', [
      '-F',
      'none',
      ...options.flatMap((option) => ['-o', option]),
      '-p',
      String(port),
      '-l',
      `${vm.id}#${service.bootstrap.api_key}`,
      '127.0.0.1',
      'echo over ssh',
    ]);
    assert.equal(stdout, 'over ssh\n');
  });

  test('calls of functions', async () => {
    const deployed = await service.call('POST', '/fns', {
      name: 'far',
      image: { type: 'named', name: 'busybox' },
      handler: ['/bin/sh', '-c', HANDLER],
      mem_mib: 256,
      scratch_mib: 64,
    });
    assert.equal(deployed.status, 200, JSON.stringify(deployed.body));
    const answer = await eventually(
      'a call',
      async () => {
        const called = await fetch(`${service.bootstrap.base_url}/fns/far/invoke`, {
          method: 'POST',
          headers: bearer(),
          body: '{}',
        });
        const read = await called.text();
        return ![429, 502, 503].includes(called.status) && { status: called.status, read };
      },
      PATIENCE_MS,
    );
    assert.deepEqual(answer, { status: 200, read: 'handled' });
    assert.equal((await service.call('DELETE', '/fns/far')).status, 204);
  });
}

describe('a host that gateways connect to', () => {
  clientsReachSandboxes();

  test('no stranger in the network reaches the data server', async () => {
    const socket = connectTls({ host: networks.far.address, port: dataPort, rejectUnauthorized: false });
    socket.on('error', () => undefined);
    socket.on('secureConnect', () => socket.write(`GET /metrics HTTP/1.1\r\nhost: runner\r\n\r\n`));
    let received = 0;
    socket.on('data', (chunk: Buffer) => (received += chunk.length));
    await new Promise((resolve) => socket.once('close', resolve));
    assert.equal(received, 0);
  });
});

describe('a host that accepts no connections', () => {
  before(async () => {
    await stopRunner();
    const rules =
      'table inet closed { chain input { type filter hook input priority 0; iifname eth0 ct state new drop; }; }';
    await promisify(execFile)(...inNamespace(networks.far.namespace, 'nft', rules));
    await startRunner('none', 'closed');
    const id = await eventually(
      'the far host is ready again, with another name',
      async () => (await hosts()).find(({ ready, facts }) => ready && facts.name === 'closed')?.id,
      PATIENCE_MS,
    ).catch((error: unknown) => {
      throw new Error(`${String(error)}\n${output}`);
    });
    assert.equal(id, farId);
  });

  test('is not reached from outside', async () => {
    const socket = connect({ host: networks.far.address, port: dataPort, timeout: 2_000 });
    socket.on('timeout', () => socket.destroy(new Error('no answer')));
    await assert.rejects(once(socket, 'connect'), /no answer/);
  });

  clientsReachSandboxes();

  test('after the gateway has started anew', async () => {
    await service.kill9('gateway');
    const answer = await eventually('an answer', () =>
      service.exec(vm.id, 'echo again').catch(() => undefined),
    );
    assert.deepEqual(answer, { exitCode: 0, result: 'again\n' });
  });
});

test('each process says when its certificate expires', async () => {
  const operatorToken = (await readFile(join(service.home, 'operator.token'), 'utf8')).trim();
  const control = await fetch(`${service.bootstrap.internal_url}/metrics`, {
    headers: { authorization: `Bearer ${operatorToken}` },
  });
  const ofSocket = async (socketPath: string): Promise<string> => {
    const [answer] = (await once(httpRequest({ socketPath, path: '/metrics' }).end(), 'response')) as [
      IncomingMessage,
    ];
    return await text(answer);
  };
  const all = {
    control: await control.text(),
    gateway: await ofSocket(join(service.home, 'run/gateway.sock')),
    runner: await ofSocket(join(folder, 'home/run/runner.sock')),
  };
  for (const [name, metrics] of Object.entries(all)) {
    const [, seconds] = /^releap_host_certificate_expiry_timestamp_seconds (\S+)$/m.exec(metrics) ?? [];
    assert.ok(Number(seconds) * 1000 > Date.now(), `${name}: ${seconds}`);
  }
});

test('other machines get no plain HTTP of the internal listener', async () => {
  const { internal_url: url } = service.bootstrap;
  const [file, args] = inNamespace(
    networks.far.namespace,
    'curl',
    '-s',
    '-m',
    '30',
    '-w',
    '\n%{http_code}',
    `${url}/operator/hosts`,
  );
  const { stdout } = await promisify(execFile)(file, args);
  assert.match(stdout, /https.*\n426$/s);
});
