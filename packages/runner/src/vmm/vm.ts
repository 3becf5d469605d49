import { readFile } from 'node:fs/promises';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import type { Logger } from 'pino';
import { option } from './command-line.ts';
import { EnospcMonitor } from './enospc-monitor.ts';
import { isAlive, killProcess } from './process-identity.ts';
import type { ProcessIdentity } from './process-identity.ts';
import { connectUnix, QmpClient } from './qmp.ts';
import { lastWords, startVmm } from './start-vmm.ts';
import type { StartVmOptions } from './start-vmm.ts';

/** QEMU listens on its sockets within 30 ms of its start; this is for a machine under heavy load. */
const START_DEADLINE_MS = 15_000;
const KILL_DEADLINE_MS = 10_000;
/** For one that may have to write the tables of its disks. */
const QUIT_DEADLINE_MS = 1_000;
/** For one that may be bringing its disks to the platters, and answers nothing meanwhile. */
const ADOPT_DEADLINE_MS = 20_000;
/** How often an adopted process is looked at besides the end of its QMP connection. */
const WATCH_INTERVAL_MS = 2_000;
const EXIT_GRACE_MS = 500;

/** What a guest's own kernel has done to its machine. One that panics restarts, too. */
const GUEST_ENDS = new Map<unknown, string>([
  ['guest-shutdown', 'the guest powered itself off'],
  ['guest-reset', 'the guest restarted, or crashed'],
]);

/** States of QEMU in which a guest is on its way somewhere, or is waited for elsewhere (`EnospcMonitor`). */
const PASSING_STATES: ReadonlySet<unknown> = new Set([
  'running',
  'io-error',
  'shutdown',
  'prelaunch',
  'inmigrate',
  'postmigrate',
  'finish-migrate',
  'save-vm',
  'restore-vm',
]);

/** A VMM process that lives, with its control connection. It outlives this handle, unless killed. */
export class Vm {
  readonly identity: ProcessIdentity;
  readonly qmp: QmpClient;
  #dir: string;
  readonly #exitListeners = new Set<(reason: string) => void>();
  readonly #log: Logger;
  readonly #enospc: EnospcMonitor;
  #exitReason: string | undefined;
  #console: Socket | undefined;
  #onConsole: ((chunk: Buffer) => void) | undefined;
  #onStood: (() => void) | undefined;
  #watch: NodeJS.Timeout | undefined;
  #detached = false;
  #ended: string | undefined;
  #isOwnChild = false;
  #losing = false;
  /** Whether the guest is stopped because we said so, or is about to be. */
  #stopped = false;
  /** Why its guest cannot run any more, when the VMM has said so. */
  #failure: string | undefined;
  #guestEnd: string | undefined;

  private constructor(identity: ProcessIdentity, qmp: QmpClient, dir: string, log: Logger) {
    this.identity = identity;
    this.qmp = qmp;
    this.#dir = dir;
    this.#log = log;
    const tell = (line: string): void => this.#onConsole?.(Buffer.from(`\n[releap] ${line}\n`));
    this.#enospc = new EnospcMonitor(qmp, log, tell, () => this.#onStood?.());
    qmp.onEvent(({ event, data }) => {
      if (event === 'SHUTDOWN') this.#guestEnd ??= GUEST_ENDS.get(data['reason']);
      if (event === 'STOP' && !this.#stopped) void this.#attendStop();
    });
    qmp.onClose(() => void this.#lost());
    this.#watch = setInterval(() => {
      if (!isAlive(identity)) void this.#lost();
    }, WATCH_INTERVAL_MS);
    this.#watch.unref();
  }

  /** Its sockets and its own output lie here. */
  get dir(): string {
    return this.#dir;
  }

  /** Its folder has another name now. */
  movedTo(dir: string): this {
    this.#dir = dir;
    return this;
  }

  /** Unix socket of the port that the guest agent listens on. */
  get agentSocketPath(): string {
    return join(this.dir, 'agent');
  }

  /**
   * Starts a VMM and waits for its control connection. The guest boots (`boot`) or waits for its state.
   * @throws Error with the VMM's own last words when it does not come up; then nothing of it is left running
   */
  static async start(options: StartVmOptions): Promise<Vm> {
    const { dir, log } = options;
    const { child, identity, fate } = await startVmm(options);
    try {
      const qmp = await QmpClient.connect(join(dir, 'qmp'), {
        deadlineMs: START_DEADLINE_MS,
        alive: () => fate.ended === undefined,
      });
      const vm = new Vm(identity, qmp, dir, log);
      vm.#isOwnChild = true;
      child.once('exit', () => {
        vm.#ended = fate.ended;
        void vm.#lost();
      });
      vm.#onConsole = options.onConsole;
      await vm.#connectConsole();
      return vm;
    } catch (error) {
      // One that is ending by itself is let tell how.
      for (let waited = 0; waited < EXIT_GRACE_MS && fate.ended === undefined; waited += 10) {
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
      await killProcess(identity, KILL_DEADLINE_MS);
      const said = await lastWords(dir);
      throw new Error(
        `the VMM did not start${fate.ended === undefined ? '' : ` (${fate.ended})`}: ${said || (error as Error).message}`,
        { cause: error },
      );
    }
  }

  /**
   * Takes over a VMM that an earlier process started.
   * @throws when that very process is gone or does not answer
   */
  static async adopt(options: {
    identity: ProcessIdentity;
    dir: string;
    /** Folder that its command line names; another one when the folder was renamed since. */
    startedIn: string;
    onConsole?: ((chunk: Buffer) => void) | undefined;
    log: Logger;
  }): Promise<Vm> {
    const { identity, dir, startedIn, log } = options;
    if (!isAlive(identity)) throw new Error(`the VMM (process ${identity.pid}) has ended`);
    const command = await readFile(`/proc/${identity.pid}/cmdline`, 'latin1');
    if (!command.includes(option(startedIn)))
      throw new Error(`process ${identity.pid} is not the VMM of ${dir}`);
    const qmp = await QmpClient.connect(join(dir, 'qmp'), {
      deadlineMs: ADOPT_DEADLINE_MS,
      alive: () => isAlive(identity),
    });
    const vm = new Vm(identity, qmp, dir, log);
    try {
      vm.#onConsole = options.onConsole;
      await vm.#connectConsole();
      return vm;
    } catch (error) {
      vm.detach();
      throw error;
    }
  }

  get exited(): boolean {
    return this.#exitReason !== undefined;
  }

  /** How the guest has ended its machine itself, fit for a user; then the VMM ends in good order. */
  get guestEnd(): string | undefined {
    return this.#guestEnd;
  }

  /** Resolves when the VMM has ended by itself. @throws when it has not within `deadlineMs` */
  async ended(deadlineMs: number): Promise<void> {
    await new Promise<void>((resolve, reject) => {
      const timer = setTimeout(
        () => reject(new Error(`the VMM did not end within ${deadlineMs} ms`)),
        deadlineMs,
      );
      this.onExit(() => {
        clearTimeout(timer);
        resolve();
      });
    });
  }

  /** Calls back once, with a reason fit for a user, when the VMM has ended; not after `detach` or `kill`. */
  onExit(listener: (reason: string) => void): void {
    if (this.#exitReason === undefined) this.#exitListeners.add(listener);
    else listener(this.#exitReason);
  }

  /** Calls back whenever the guest goes on after it stood for want of room: its clock stood with it. */
  onStood(listener: () => void): void {
    this.#onStood = listener;
  }

  /**
   * Loads a saved device state from an inherited descriptor; the guest's memory is in its place already.
   * The guest stands still afterwards.
   */
  async loadState(fd: number, deadlineMs: number): Promise<void> {
    const { qmp } = this;
    const arrived = qmp.waitEvent(
      ({ event, data }) =>
        event === 'MIGRATION' && (data['status'] === 'completed' || data['status'] === 'failed'),
      deadlineMs,
    );
    arrived.catch(() => undefined);
    await Promise.all([
      qmp.execute('migrate-set-capabilities', { capabilities: STATE_CAPABILITIES }),
      qmp.execute('migrate-set-parameters', { 'announce-rounds': 0 }),
      qmp.execute('migrate-incoming', { uri: `fd:${fd}` }),
    ]);
    const { data } = await arrived;
    if (data['status'] === 'completed') return;
    // It prints the reason after that, and exits.
    await this.ended(KILL_DEADLINE_MS).catch(() => undefined);
    throw new Error('the VMM could not load the saved state');
  }

  /** Who gets what the guest prints from now on. */
  setConsole(listener: ((chunk: Buffer) => void) | undefined): void {
    this.#onConsole = listener;
  }

  async stop(): Promise<void> {
    this.#enospc.hold(true);
    this.#stopped = true;
    await this.qmp.execute('stop');
  }

  /** What the VMM says about itself, e.g. `10.0.2`: for one whose record does not say it. */
  async version(): Promise<string> {
    const answer = (await this.qmp.execute('query-version')) as
      | { qemu?: Record<string, unknown> }
      | undefined;
    const parts = ['major', 'minor', 'micro'].map((name) => answer?.qemu?.[name]);
    if (!parts.every(Number.isSafeInteger)) throw new Error('the VMM does not say its version');
    return parts.join('.');
  }

  /** Whether the guest was stopped by us, or is about to be. */
  get isStopped(): boolean {
    return this.#stopped;
  }

  /** Whether the guest's processors run. */
  async isRunning(): Promise<boolean> {
    const answer = (await this.qmp.execute('query-status')) as { running?: unknown };
    return answer.running === true;
  }

  async continue(): Promise<void> {
    try {
      await this.qmp.execute('cont');
      this.#stopped = false;
    } finally {
      this.#enospc.hold(false);
    }
  }

  /**
   * The guest was stopped by something else: an error in KVM or in the VMM, a panic, a watchdog. It would stand for ever and
   * look as if it ran, so its VMM is ended.
   */
  async #attendStop(): Promise<void> {
    let status: unknown;
    try {
      ({ status } = (await this.qmp.execute('query-status')) as { status?: unknown });
    } catch {
      // It is ending, and that is noticed anyway.
      return;
    }
    const isExpected = this.#stopped || this.#enospc.waits;
    if (isExpected || this.#detached || PASSING_STATES.has(status)) return;
    this.#failure = `the micro-VM stopped by itself (${String(status).slice(0, 40)})`;
    this.#log.error({ pid: this.identity.pid, status }, 'a guest was stopped by its VMM; ending it');
    await killProcess(this.identity, KILL_DEADLINE_MS).catch((error: unknown) =>
      this.#log.error({ err: error }, 'a VMM could not be ended'),
    );
  }

  /** Pauses the guest while the host's disk is short of space. It continues by itself. */
  async pauseForSpace(isShort: () => boolean): Promise<void> {
    if (!this.#stopped) await this.#enospc.pause(isShort);
  }

  /** Whether the guest cannot be expected to answer, for want of room on the host's disk. */
  get waitsForSpace(): boolean {
    return this.#enospc.waits;
  }

  /** Whether the guest stands for want of room on the host's disk; it goes on by itself when there is some. */
  async isBlockedOnSpace(): Promise<boolean> {
    return await this.#enospc.look();
  }

  /**
   * Lets the VMM end itself, its disks closed in order: one that is killed leaves a mark on them, and whoever opens them next
   * reads all of their tables. Ends it all the same when it does not.
   */
  async quit(): Promise<void> {
    this.#exitListeners.clear();
    // Its answer may be overtaken by its end.
    await this.qmp.execute('quit', undefined, { deadlineMs: QUIT_DEADLINE_MS }).catch(() => undefined);
    this.detach();
    for (const end = performance.now() + QUIT_DEADLINE_MS; isAlive(this.identity); ) {
      if (performance.now() >= end) {
        this.#log.warn({ pid: this.identity.pid }, 'a VMM does not end in good order');
        break;
      }
      await new Promise((resolve) => setTimeout(resolve, 2));
    }
    await this.kill();
  }

  /** Ends the VMM now, and resolves when it is gone. */
  async kill(): Promise<void> {
    this.detach();
    await killProcess(this.identity, KILL_DEADLINE_MS);
  }

  /** Lets go of the connections; the VMM goes on. */
  detach(): void {
    this.#detached = true;
    clearInterval(this.#watch);
    this.#exitListeners.clear();
    this.#console?.destroy();
    this.qmp.close();
  }

  async #connectConsole(): Promise<void> {
    // While nobody is connected QEMU drops what the guest prints, so a guest never waits for us.
    const socket = await connectUnix(join(this.dir, 'console'), { alive: () => isAlive(this.identity) });
    socket.unref();
    socket.on('data', (chunk: Buffer) => this.#onConsole?.(chunk));
    socket.on('error', (error) => this.#log.warn({ err: error }, 'console connection broke'));
    this.#console = socket;
  }

  async #lost(): Promise<void> {
    if (this.#detached || this.#losing) return;
    this.#losing = true;
    clearInterval(this.#watch);
    // How it ended is told to the one who started it, a moment after its sockets close.
    const unsettled = (): boolean =>
      isAlive(this.identity) || (this.#isOwnChild && this.#ended === undefined);
    for (let waited = 0; waited < EXIT_GRACE_MS && unsettled(); waited += 10) {
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
    if (isAlive(this.identity)) {
      // A VMM that we cannot control is one that we cannot let run.
      this.#log.error({ pid: this.identity.pid }, 'the VMM closed its control connection; killing it');
      await killProcess(this.identity, KILL_DEADLINE_MS).catch((error: unknown) =>
        this.#log.error({ err: error }),
      );
    }
    if (this.#detached) return;
    this.#exitReason =
      this.#failure ?? `the micro-VM ended by itself${this.#ended === undefined ? '' : ` (${this.#ended})`}`;
    this.#console?.destroy();
    this.qmp.close();
    const listeners = [...this.#exitListeners];
    this.#exitListeners.clear();
    for (const listener of listeners) listener(this.#exitReason);
  }
}

const STATE_CAPABILITIES = [{ capability: 'events', state: true }];
