/** A large object read through a mount in a sandbox, next to rclone on the host. */
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { join, resolve } from 'node:path';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { promisify } from 'node:util';
import { CreateBucketCommand, PutObjectCommand } from '@aws-sdk/client-s3';
import { startS3Server, type TestS3Server } from '@releap/testing/s3-server';
import { until } from '../processes.ts';
import { type SuiteResult, summaryRows } from '../report.ts';
import { MeasuredService } from '../service.ts';
import { interleave, summarize, timed } from '../statistics.ts';
import { type Suite, suiteFolder } from '../suite.ts';

const MIB = 256;
/** Of a quick run, which only shows that all works. */
const QUICK_MIB = 16;
/** Share of rclone's throughput on the host. */
const READ_GOAL = 0.7;
const BUILD_DEADLINE_MS = 300_000;
const READ_DEADLINE_MS = 300_000;

const BUCKET = 'bench';
const KEY = 'large';
const PATH = '/mnt/store';
const MOUNT = 'dd of the mounted file in a sandbox';
const HOST = 'rclone cat on the host';
const NETWORK = "the same bytes over the guest's network, to dd";
const PORT = 5000;

export const objectStores: Suite = async ({ samples, progress, signal }) => {
  const mib = samples === 1 ? QUICK_MIB : MIB;
  await using folder = await suiteFolder();
  progress('building rclone');
  const rclone = await buildRclone(folder.path);
  await using s3 = await startS3Server(folder.path);
  await s3.client.send(new CreateBucketCommand({ Bucket: BUCKET }));
  await s3.client.send(
    new PutObjectCommand({ Bucket: BUCKET, Key: KEY, Body: Buffer.alloc(mib * 2 ** 20, 'releap') }),
  );
  progress('starting a service and a sandbox');
  await using service = await MeasuredService.start({
    warmPool: 0,
    environment: { RELEAP_STORE_PRIVATE_HOSTS: 'loopback' },
  });
  for (const [name, value] of [
    ['ID', s3.credentials.accessKeyId],
    ['KEY', s3.credentials.secretAccessKey],
  ])
    await service.service.call('PUT', `/secrets/${name}`, { value });
  await service.call('POST', '/object-stores', {
    name: 'bench',
    bucket: BUCKET,
    access_key_secret: 'ID',
    secret_key_secret: 'KEY',
    endpoint: s3.endpoint,
    path_style: true,
  });
  const id = await service.createAndRun({
    mem_mib: 1024,
    object_store_mounts: [{ object_store: 'bench', mount_path: PATH }],
  });
  const inside = async (command: string): Promise<void> => {
    const { exitCode, result } = await service.service.exec(id, command);
    if (exitCode !== 0) throw new Error(`${command}: ${result}`);
  };
  const { vm_ip: address } = await service.call<{ vm_ip: string }>('GET', `/vms/${id}`);
  await inside(`nc -ll -p ${PORT} -e dd of=/dev/null bs=64k > /dev/null 2>&1 &`);
  const taken = await interleave(
    {
      [MOUNT]: async () => {
        await inside('echo 3 > /proc/sys/vm/drop_caches');
        return await timed(() => inside(`dd if=${PATH}/${KEY} of=/dev/null bs=1M`));
      },
      [NETWORK]: () => timed(() => sendToGuest(address, mib)),
      [HOST]: () => timed(() => readOnHost(rclone, s3)),
    },
    {
      rounds: samples,
      warmUp: Math.min(1, samples - 1),
      signal,
      onRound: (round) => progress(round < 0 ? 'warming up' : `round ${round + 1} of ${samples}`),
    },
  );
  await service.remove(id);
  const p50 = (name: string): number => summarize(taken[name] ?? []).p50;
  const value = p50(HOST) / p50(MOUNT);
  const result: SuiteResult = {
    title: 'Mounted object stores',
    goal: `An object of ${mib} MiB is read through a mount in a sandbox with at least ${READ_GOAL} of the throughput of rclone on the host.`,
    unit: 'ms',
    rows: summaryRows(taken),
    verdicts: [
      {
        what: 'throughput of the mount, relative to rclone on the host,',
        value,
        goal: `at least ${READ_GOAL}`,
        met: value >= READ_GOAL,
      },
    ],
    notes: [
      'The server is OpenStack Swift, on the same machine. rclone is of the same version on both sides; on the host it asks the server itself, and in the sandbox over the network of the guest and the proxy that signs.',
      'Where the guest is emulated, it is the bound: dd receives bytes that nothing looks at.',
      "The page cache of the guest is emptied before each read. The sandbox's time includes that of a command through the gateway.",
    ],
    samples: taken,
  };
  return [result];
};

/** Resolves when the guest has read all of it. */
async function sendToGuest(address: string, mib: number): Promise<void> {
  const block = Buffer.alloc(2 ** 20, 'releap');
  let socket: Socket | undefined;
  await until('the guest listens', async () => {
    socket = connect({ host: address, port: PORT });
    return await once(socket, 'connect').then(
      () => true,
      () => false,
    );
  });
  if (socket === undefined) return;
  const closed = once(socket, 'close');
  socket.resume();
  await pipeline(Readable.from(Array.from({ length: mib }, () => block)), socket);
  await closed;
}

/** @returns its path */
async function buildRclone(folder: string): Promise<string> {
  const program = join(folder, 'rclone');
  await promisify(execFile)(
    'go',
    ['build', '-trimpath', '-o', program, resolve(import.meta.dirname, '../stores/rclone.go')],
    {
      cwd: resolve(import.meta.dirname, '../../guest/storemount'),
      timeout: BUILD_DEADLINE_MS,
      env: {
        ...process.env,
        CGO_ENABLED: '0',
        GOTOOLCHAIN: 'local',
        GOFLAGS: '-mod=readonly',
        GOWORK: 'off',
      },
    },
  );
  return program;
}

async function readOnHost(rclone: string, { endpoint, credentials }: TestS3Server): Promise<void> {
  const options = { provider: 'Other', env_auth: 'true', region: 'us-east-1', endpoint };
  const remote = `:s3,${Object.entries(options)
    .map(([name, value]) => `${name}="${value}"`)
    .join(',')}:${BUCKET}/${KEY}`;
  const child = spawn(rclone, ['cat', '--config', '', remote], {
    stdio: ['ignore', 'ignore', 'inherit'],
    timeout: READ_DEADLINE_MS,
    env: { AWS_ACCESS_KEY_ID: credentials.accessKeyId, AWS_SECRET_ACCESS_KEY: credentials.secretAccessKey },
  });
  const [code] = (await once(child, 'exit')) as [number | null];
  if (code !== 0) throw new Error(`rclone cat ended with ${code}`);
}
