/** A runner that can be killed at a failpoint, and what it must not leave on the host. */
import { fork } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { DesiredState, ObservedStatus } from '@releap/contract';
import { childrenOf } from '@releap/testing/processes';
import { programOf } from '@releap/testing/program';
import type {
  Assignment,
  Observation,
  SnapshotAssignment,
  SnapshotObservation,
} from '../../src/reconcile/assignment.ts';

const CHILD = programOf(fileURLToPath(new URL('runner-child.ts', import.meta.url)));

export interface RunnerCall {
  id: number;
  method: 'want' | 'reported' | 'observed' | 'sh' | 'snapshot' | 'hasNetwork' | 'warmedUp' | 'detach';
  args: unknown[];
}

interface Answer {
  open?: true;
  id?: number;
  result?: unknown;
  error?: string;
}

/** `TestRunner` in another process. Calls reject when that is gone. */
export class RunnerProcess {
  readonly #child: ChildProcess;
  readonly #crashes: string;
  readonly #waiting = new Map<number, PromiseWithResolvers<unknown>>();
  readonly #exit: Promise<string>;
  #last = 0;

  private constructor(child: ChildProcess, crashes: string) {
    this.#child = child;
    this.#crashes = crashes;
    this.#exit = once(child, 'exit').then(([code, signal]) => String(signal ?? code));
    child.on('message', ({ id, result, error }: Answer) => {
      if (id === undefined) return;
      const waiting = this.#waiting.get(id);
      this.#waiting.delete(id);
      if (error === undefined) waiting?.resolve(result);
      else waiting?.reject(new Error(error));
    });
    void this.#exit.then((how) => {
      for (const { reject } of this.#waiting.values()) reject(new Error(`the runner ended (${how})`));
      this.#waiting.clear();
    });
  }

  /**
   * Re-attaches to what an earlier runner of the same home has left.
   * @param waiting VMs that are kept waiting for sandboxes
   */
  static async open(home: string, waiting = 0): Promise<RunnerProcess> {
    const crashes = join(home, 'crash');
    await mkdir(crashes, { recursive: true });
    const child = fork(CHILD, [home, String(waiting)], { env: { ...process.env, RELEAP_CRASH_AT: crashes } });
    const opened = await Promise.race([once(child, 'message'), once(child, 'exit')]);
    if ((opened[0] as Answer | null)?.open !== true) throw new Error('the runner did not come up');
    return new RunnerProcess(child, crashes);
  }

  /** From here on it kills itself at the failpoint `point`. */
  async arm(point: string): Promise<void> {
    await writeFile(join(this.#crashes, point), '');
  }

  /** Resolves when it has ended, with the signal. */
  async died(): Promise<string> {
    return await this.#exit;
  }

  async want(vmId: string, generation: number, desired: DesiredState, more: Partial<Assignment> = {}) {
    await this.#call('want', vmId, generation, desired, more);
  }

  async reported(vmId: string, generation: number, status: ObservedStatus): Promise<Observation> {
    return (await this.#call('reported', vmId, generation, status)) as Observation;
  }

  async observed(vmId: string): Promise<Observation | undefined> {
    return (await this.#call('observed', vmId)) as Observation | undefined;
  }

  async sh(vmId: string, script: string): Promise<string> {
    return (await this.#call('sh', vmId, script)) as string;
  }

  async snapshot(assignment: SnapshotAssignment): Promise<SnapshotObservation> {
    return (await this.#call('snapshot', assignment)) as SnapshotObservation;
  }

  async hasNetwork(vmId: string): Promise<boolean> {
    return (await this.#call('hasNetwork', vmId)) as boolean;
  }

  /** Resolves when VMs wait for sandboxes. */
  async warmedUp(): Promise<void> {
    await this.#call('warmedUp');
  }

  /** Ends it without ending its VMs. */
  async close(): Promise<void> {
    await this.#call('detach').catch(() => undefined);
    if (this.#child.connected) this.#child.disconnect();
    this.#child.kill('SIGKILL');
    await this.#exit;
  }

  async #call(method: RunnerCall['method'], ...args: unknown[]): Promise<unknown> {
    const waiting = Promise.withResolvers<unknown>();
    this.#last += 1;
    this.#waiting.set(this.#last, waiting);
    this.#child.send({ id: this.#last, method, args } satisfies RunnerCall, (error) => {
      if (error) waiting.reject(error);
    });
    return await waiting.promise;
  }
}

/** What the host has of one VM. */
export interface VmFacts {
  pid: number;
  /** Processes in its cgroup or started by it, living or dead: there must be none. */
  others: number[];
  /** Most bytes of memory that it may have. */
  memoryLimit: number;
}

/** @throws when it has no VMM */
export async function vmFacts(home: string, vmId: string): Promise<VmFacts> {
  const { process: vmm } = JSON.parse(await readFile(join(home, 'vms', vmId, 'vm.json'), 'utf8'));
  const { pid } = vmm as { pid: number };
  const folder = await memoryCgroup(pid);
  const limit = await readFile(await limitPath(folder), 'utf8');
  const members = (await readFile(join(folder, 'cgroup.procs'), 'utf8'))
    .split('\n')
    .filter(Boolean)
    .map(Number);
  const others = new Set([...members, ...(await childrenOf(pid))]);
  others.delete(pid);
  return { pid, others: [...others], memoryLimit: Number(limit) };
}

/** As if its VMM had been allowed less. */
export async function lowerMemoryLimit(home: string, vmId: string, bytes: number): Promise<void> {
  const { pid } = await vmFacts(home, vmId);
  await writeFile(await limitPath(await memoryCgroup(pid)), String(bytes));
}

async function limitPath(cgroup: string): Promise<string> {
  const names = await readdir(cgroup);
  return join(cgroup, names.includes('memory.max') ? 'memory.max' : 'memory.limit_in_bytes');
}

async function memoryCgroup(pid: number): Promise<string> {
  for (const line of (await readFile(`/proc/${pid}/cgroup`, 'utf8')).split('\n')) {
    const [, names = '', path = ''] = line.split(':');
    if (names === 'memory') return join('/sys/fs/cgroup/memory', path);
    if (names === '' && path.includes('releap-')) return join('/sys/fs/cgroup', path);
  }
  throw new Error(`process ${pid} is in no cgroup for memory`);
}

/** The hostd processes that copy the memory of this VMM while it runs. */
export async function copiersOf(pid: number): Promise<number[]> {
  const found: number[] = [];
  for (const name of await readdir('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    const command = await readFile(`/proc/${name}/cmdline`, 'latin1').catch(() => '');
    if (command.includes(`hostd\0precopy\0${pid}\0`)) found.push(Number(name));
  }
  return found;
}
