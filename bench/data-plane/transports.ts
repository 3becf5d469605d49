/**
 * The data server of a runner over its Unix socket and over TLS, side by side in one run: a request on a kept-alive connection, a new connection
 * to a port of a sandbox, and the throughput of such a connection. A server of this machine stands for the guest.
 *
 * node bench/data-plane/transports.ts [rounds]
 */
import { type ChildProcess, fork } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { rm } from 'node:fs/promises';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { loadavg } from 'node:os';
import { join } from 'node:path';
import {
  connectorOf,
  DataHosts,
  type HostCertificate,
  type Peer,
  plainPeer,
} from '@releap/certificates/hosts';
import { openPortStream } from '@releap/gateway';
import { registerPortStreams, startDataServer } from '@releap/runner/data';
import { TestAuthority } from '@releap/testing/host-authority';
import { quiet } from '@releap/testing/logging';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import { Pool } from 'undici';

const REQUESTS = 2_000;
const CONNECTIONS = 300;
const BYTES = 256 * 1024 * 1024;
const CHUNK = Buffer.alloc(64 * 1024);

type Identity = Pick<NonNullable<HostCertificate['current']>, 'key' | 'certificate' | 'roots'>;
interface Serving {
  unix: string;
  tls: string;
  /** Sends `BYTES`, and then reads until the end. */
  port: number;
}

async function serve(folder: string, identity: Identity): Promise<Serving> {
  const guest = createServer({ allowHalfOpen: true, noDelay: true }, (socket) => {
    socket.on('error', () => undefined);
    socket.once('data', (order) => {
      if (order[0] === 0) socket.on('end', () => socket.end('done'));
      else void send(socket).then(() => socket.end());
    });
  });
  guest.listen(0, '127.0.0.1');
  await once(guest, 'listening');
  const socketPath = join(folder, 'data.sock');
  const current = identity as NonNullable<HostCertificate['current']>;
  const data = await startDataServer({
    socketPath,
    tls: { host: '127.0.0.1', port: 0, certificate: { current, onChange: () => undefined } },
    verify: () => Promise.resolve(true),
    register(app) {
      app.get('/vms/:id/small', () => ({ ok: true }));
      registerPortStreams(app, () => ({
        address: '127.0.0.1',
        guest: () => Promise.reject(new Error('there is no guest')),
      }));
    },
    log: quiet,
  });
  return { unix: `unix:${socketPath}`, tls: data.url, port: (guest.address() as AddressInfo).port };
}

async function send(socket: Socket): Promise<void> {
  for (let sent = 0; sent < BYTES; sent += CHUNK.length)
    if (!socket.write(CHUNK)) await once(socket, 'drain');
}

const median = (values: readonly number[]): number =>
  values.toSorted((a, b) => a - b)[values.length >> 1] ?? NaN;

/** Medians, or rates; and what both processes computed for it, which other programs of a busy machine change little. */
const MEASURES = [
  'request on a kept-alive connection, ms',
  '… processor, ms',
  'new connection to a port, ms',
  '… processor, ms',
  'from the guest, MB/s',
  '… processor, s for 1 GB',
  'to the guest, MB/s',
  '… processor, s for 1 GB',
] as const;

/** @param cpuMs of both processes so far */
async function measure(host: Peer, port: number, cpuMs: () => Promise<number>): Promise<number[]> {
  const lease = { vmId: 'box', host, dataToken: 'any' };
  const results: number[] = [];
  const pool = new Pool(host.origin, { connections: 1, connect: connectorOf(host) });
  const repeated = async (times: number, action: () => Promise<void>): Promise<void> => {
    const taken: number[] = [];
    const cpu = await cpuMs();
    for (let index = 0; index < times; index++) {
      const at = performance.now();
      await action();
      taken.push(performance.now() - at);
    }
    results.push(median(taken), ((await cpuMs()) - cpu) / times);
  };
  await repeated(REQUESTS, async () => {
    const headers = { authorization: 'Bearer any' };
    const { body } = await pool.request({ method: 'GET', path: '/vms/box/small', headers });
    await body.text();
  });
  await pool.destroy();
  await repeated(CONNECTIONS, async () => {
    (await openPortStream(lease, port)).destroy();
  });
  const transfer = async (first: number, action: (socket: Socket) => Promise<void>): Promise<void> => {
    const socket = await openPortStream(lease, port);
    const [at, cpu] = [performance.now(), await cpuMs()];
    socket.write(Buffer.of(first));
    await action(socket);
    socket.resume();
    await once(socket, 'end');
    results.push(BYTES / 1e3 / (performance.now() - at), (((await cpuMs()) - cpu) / BYTES) * 1e6);
    socket.destroy();
  };
  await transfer(1, () => Promise.resolve());
  await transfer(0, async (socket) => {
    await send(socket);
    socket.end();
  });
  return results;
}

const ownCpuMs = (): number => {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e3;
};

async function main(rounds: number): Promise<void> {
  const folder = await temporaryFolder('releap-transports-');
  const authority = await TestAuthority.create();
  const runnerId = randomUUID();
  const runner = await authority.certificate({ role: 'runner', id: runnerId });
  const gateway = await authority.certificate({ role: 'gateway', id: randomUUID() });
  const { key, certificate, roots } = await runner.get();
  const child: ChildProcess = fork(import.meta.filename, ['serve', folder]);
  child.send({ key, certificate, roots } satisfies Identity);
  const [serving] = (await once(child, 'message')) as [Serving];
  const hosts: Record<'unix' | 'tls', Peer> = {
    unix: plainPeer(serving.unix),
    tls: new DataHosts({ certificate: gateway }).of({ runnerId, dataUrl: serving.tls }),
  };
  const cpuMs = async (): Promise<number> => {
    child.send('cpu');
    const [other] = (await once(child, 'message')) as [number];
    return ownCpuMs() + other;
  };
  const seen: Record<'unix' | 'tls', number[][]> = { unix: [], tls: [] };
  for (let round = 0; round < rounds; round++)
    for (const way of round % 2 === 0 ? (['unix', 'tls'] as const) : (['tls', 'unix'] as const))
      seen[way].push(await measure(hosts[way], serving.port, cpuMs));
  console.log(
    `load ${loadavg()[0]?.toFixed(1)}, ${rounds} rounds\n\n| | Unix socket | TLS | ratio |\n|---|---|---|---|`,
  );
  for (const [index, name] of MEASURES.entries()) {
    const [unix, tls] = [seen.unix, seen.tls].map((all) => median(all.map((one) => one[index] ?? NaN)));
    console.log(
      `| ${name} | ${unix?.toFixed(2)} | ${tls?.toFixed(2)} | ${((tls ?? NaN) / (unix ?? NaN)).toFixed(2)} |`,
    );
  }
  child.kill();
  runner.close();
  gateway.close();
  await rm(folder, { recursive: true, force: true });
}

const [first = '5', folder = ''] = process.argv.slice(2);
if (first === 'serve') {
  process.once('message', (identity) => {
    process.on('message', (message) => {
      if (message === 'cpu') process.send?.(ownCpuMs());
    });
    void serve(folder, identity as Identity).then((serving) => process.send?.(serving));
  });
} else await main(Number(first));
