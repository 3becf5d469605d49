/**
 * Copies the memory of a running guest, in different ways: `unshare --net -- node guest.ts FOLDER`, where FOLDER/floor.json is a
 * `FloorMachine`. Each line on standard input is a `CopyRequest`, answered with a line that is a `CopyResult`.
 */
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { copyFileSync, openSync, readFileSync } from 'node:fs';
import { open, readFile, rm, stat, writeFile } from 'node:fs/promises';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { childrenOf } from '@releap/testing/processes';
import type { GuestMemory } from '../../packages/runner/src/memory/guest-memory.ts';
import { copyMemoryFile } from '../../packages/runner/src/memory/memory-file.ts';
import { Precopy } from '../../packages/runner/src/memory/precopy.ts';
import { tuning } from '../../packages/runner/src/vmm/tuning.ts';
import { QmpClient } from '../../packages/runner/src/vmm/qemu/qmp.ts';
import { Agent, connected } from '../floor/agent.ts';
import type { FloorMachine } from '../floor/restore.ts';
import { familyCpuSeconds, until } from '../processes.ts';

export interface CopyRequest {
  how: 'pre-copy' | 'untracked' | 'mapped-ram';
  /** The template's memory, which the guest maps. */
  origin: string;
  memMib: number;
  /** Written before the copy. */
  writtenMib: number;
  /** Written to over and over meanwhile, at this rate; 0 for nothing. */
  mibPerSecond: number;
}

/** Milliseconds, MiB and seconds of processor time. */
export interface CopyResult {
  total: number;
  frozen: number;
  cpu: number;
  copied: number;
  file: number;
  rssBefore: number;
  rssPeak: number;
  rssAfter: number;
}

const folder = process.argv[2] ?? '';
const machine = JSON.parse(readFileSync(join(folder, 'floor.json'), 'utf8')) as FloorMachine;
const LOAD_DEADLINE_MS = 60_000;
/** A migration that has not ended by itself by then is ended by stopping the guest. */
const CONVERGE_MS = 20_000;
const MIB = 2 ** 20;
/** Of the writer: how much of the memory it writes to, and how often a second. */
const SET_SHARE = 1 / 4;
const STEPS_A_SECOND = 10;

const at = (name: string): string => join(folder, name);

class Guest implements AsyncDisposable {
  readonly qmp: QmpClient;
  readonly agent: Agent;
  readonly memory: GuestMemory;
  readonly #end: () => Promise<void>;

  private constructor(qmp: QmpClient, agent: Agent, memory: GuestMemory, end: () => Promise<void>) {
    this.qmp = qmp;
    this.agent = agent;
    this.memory = memory;
    this.#end = end;
  }

  static async start({ origin, memMib }: CopyRequest): Promise<Guest> {
    copyFileSync(machine.layer, at('0-scratch.qcow2'));
    const log = openSync(at('qemu.log'), 'w');
    const state = openSync(machine.state, 'r');
    // With the configuration section off, QEMU 10.0 aborts when it would write its description of a migration stream.
    const args = machine.args.map((arg, index) =>
      machine.args[index - 1] === '-machine' ? `${arg},suppress-vmdesc=on` : arg.replaceAll('{slot}', '0'),
    );
    const qemu = spawn(machine.qemu, args, {
      env: { ...process.env, ...machine.env },
      stdio: ['ignore', log, log, state],
    });
    const exited = once(qemu, 'exit');
    process.once('exit', () => qemu.kill('SIGKILL'));
    const qmp = await QmpClient.connect(at('0-qmp'), {
      deadlineMs: LOAD_DEADLINE_MS,
      alive: () => qemu.exitCode === null,
    });
    await qmp.execute('migrate-set-capabilities', {
      capabilities: [{ capability: 'events', state: true }],
    });
    const loaded = migrated(qmp);
    await qmp.execute('migrate-incoming', { uri: 'fd:3' });
    const socket: Socket = await connected(at('0-agent'));
    const agent = new Agent(socket);
    await loaded;
    if (machine.activate)
      await qmp.execute('blockdev-set-active', { 'node-name': machine.scratchNode, active: true });
    await qmp.execute('block_resize', { 'node-name': machine.scratchNode, size: machine.resizeTo });
    await qmp.execute('cont');
    await agent.greet(machine.greeting);
    const pid = qemu.pid ?? 0;
    const line = (await readFile(`/proc/${pid}/maps`, 'latin1'))
      .split('\n')
      .find((one) => one.includes(' rw-p ') && one.endsWith(origin));
    const [from = 0, to = 0] = (line?.split(' ')[0] ?? '').split('-').map((hex) => Number.parseInt(hex, 16));
    if (to - from !== memMib * MIB) throw new Error(`the guest's memory is not in the maps of ${pid}`);
    return new Guest(qmp, agent, { pid, address: from, bytes: memMib * MIB }, async () => {
      socket.destroy();
      qemu.kill('SIGKILL');
      await exited;
      for (const name of ['0-qmp', '0-agent', '0-console', '0-scratch.qcow2'])
        await rm(at(name), { force: true });
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#end();
  }
}

/** Resolves when a migration has ended, with the time. */
async function migrated(qmp: QmpClient): Promise<number> {
  return await new Promise((resolve, reject) => {
    qmp.onEvent(({ event, data }) => {
      if (event !== 'MIGRATION') return;
      if (data['status'] === 'completed') resolve(performance.now());
      if (data['status'] === 'failed') reject(new Error('the migration failed'));
    });
  });
}

async function saveDevices(qmp: QmpClient): Promise<void> {
  await rm(at('devices'), { force: true });
  await qmp.execute('xen-save-devices-state', { filename: at('devices'), live: false });
}

/** @returns milliseconds for which the guest was paused, and MiB that were copied */
async function precopy(guest: Guest, { origin }: CopyRequest): Promise<{ frozen: number; copied: number }> {
  const { qmp, memory } = guest;
  const target = at('copy');
  await copyMemoryFile(origin, target);
  await using file = await open(target, 'r+');
  await using copy = await Precopy.begin(guest, memory, file.fd);
  await copy.approach(tuning(machine.accelerator).precopy);
  const begun = performance.now();
  await qmp.execute('stop');
  await Promise.all([saveDevices(qmp), copy.take()]);
  await qmp.execute('cont');
  const frozen = performance.now() - begun;
  let copied = 0;
  for (const pid of await childrenOf(process.pid))
    if (pid !== memory.pid) copied += (await written(pid)) / MIB;
  return { frozen, copied };
}

async function mappedRam({ qmp, memory }: Guest): Promise<{ frozen: number; copied: number }> {
  const before = await written(memory.pid);
  await qmp.execute('migrate-set-capabilities', {
    capabilities: [{ capability: 'mapped-ram', state: true }],
  });
  // As long as the pre-copy may pause a guest for 4 MiB, and as fast as the machine can.
  await qmp.execute('migrate-set-parameters', { 'max-bandwidth': 2 ** 40, 'downtime-limit': 10 });
  const stopped = new Promise<number>((resolve) => {
    qmp.onEvent(({ event }) => {
      if (event === 'STOP') resolve(performance.now());
    });
  });
  const done = migrated(qmp);
  await qmp.execute('migrate', { uri: `file:${at('copy')}` });
  const late = setTimeout(() => void qmp.execute('stop'), CONVERGE_MS);
  await done;
  clearTimeout(late);
  await saveDevices(qmp);
  await qmp.execute('cont');
  const frozen = performance.now() - (await stopped);
  return { frozen, copied: ((await written(memory.pid)) - before) / MIB };
}

/** Bytes that a process has written so far, to files too. */
async function written(pid: number): Promise<number> {
  return Number(/^wchar: (\d+)$/m.exec(await readFile(`/proc/${pid}/io`, 'utf8'))?.[1] ?? 0);
}

async function resident(pid: number, name: 'VmRSS' | 'VmHWM'): Promise<number> {
  const text = await readFile(`/proc/${pid}/status`, 'utf8');
  return Number(new RegExp(`^${name}:\\s+(\\d+) kB$`, 'm').exec(text)?.[1] ?? 0) / 1024;
}

async function measure(request: CopyRequest): Promise<CopyResult> {
  const { how, memMib, writtenMib, mibPerSecond } = request;
  await using guest = await Guest.start(request);
  const { pid } = guest.memory;
  const step = Math.ceil(mibPerSecond / STEPS_A_SECOND);
  const seed = '/dev/shm/seed';
  const seedMib = Math.max(1, step);
  await guest.agent.run(
    `dd if=/dev/urandom of=${seed} bs=1M count=${seedMib} 2> /dev/null; ` +
      `cat ${`${seed} `.repeat(Math.ceil(writtenMib / seedMib))} > /dev/shm/set`,
  );
  if (mibPerSecond > 0) {
    const set = Math.floor((memMib * SET_SHARE) / step);
    await guest.agent.run(
      `(i=0; while :; do dd if=${seed} of=/dev/shm/set bs=1M seek=$((i % ${set} * ${step})) conv=notrunc; i=$((i + 1)); ` +
        `sleep 0.1; done) > /dev/null 2>&1 < /dev/null &`,
    );
    await sleep(1_000);
  }
  await rm(at('copy'), { force: true });
  // Nothing of earlier work is written back meanwhile.
  execFileSync('sync');
  await writeFile(`/proc/${pid}/clear_refs`, '5');
  const rssBefore = await resident(pid, 'VmRSS');
  const cpu = await familyCpuSeconds(process.pid);
  const begun = performance.now();
  Precopy.tracksWrites = how !== 'untracked';
  const { frozen, copied } = await (how === 'mapped-ram' ? mappedRam(guest) : precopy(guest, request));
  const total = performance.now() - begun;
  return {
    total,
    frozen,
    copied,
    cpu: (await familyCpuSeconds(process.pid)) - cpu,
    file: ((await stat(at('copy'))).blocks * 512) / MIB,
    rssBefore,
    rssPeak: await resident(pid, 'VmHWM'),
    rssAfter: await resident(pid, 'VmRSS'),
  };
}

process.stdin.once('end', () => process.exit(0));
execFileSync('ip', ['tuntap', 'add', 'tap0', 'mode', 'tap']);
execFileSync('ip', ['link', 'set', 'tap0', 'up']);
await until('the tap is there', async () => (await readFile('/proc/net/dev', 'utf8')).includes('tap0'));
process.stdout.write('ready\n');
for await (const line of createInterface(process.stdin)) {
  const answer = await measure(JSON.parse(line) as CopyRequest).catch((error: unknown) => {
    const said = readFileSync(at('qemu.log'), 'utf8').slice(-500);
    return { error: `${(error as Error).stack} ${said}` };
  });
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
