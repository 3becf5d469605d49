import { readFile } from 'node:fs/promises';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import type { Logger } from 'pino';
import { option } from './command-line.ts';
import { EnospcMonitor } from './enospc-monitor.ts';
import { isAlive, killProcess } from '../process-identity.ts';
import type { ProcessIdentity } from '../process-identity.ts';
import { connectUnix, QmpClient } from './qmp.ts';
import { lastOutput, startVmm } from './start-vmm.ts';
import type { StartVmOptions } from './start-vmm.ts';
import { DEADLINES_MS } from '../tuning.ts';

/** Interval of checks whether the process is alive, in addition to the end of its QMP connection. */
const WATCH_INTERVAL_MS = 2_000;
const EXIT_GRACE_MS = 500;

/** Reasons of a SHUTDOWN event that the guest's kernel caused. A kernel panic restarts the guest, too. */
const GUEST_ENDS = new Map<unknown, string>([
  ['guest-shutdown', 'the guest powered itself off'],
  ['guest-reset', 'the guest restarted, or crashed'],
]);

/** QEMU run states that are transient, or that are handled elsewhere (`EnospcMonitor`). */
const TRANSIENT_STATES: ReadonlySet<unknown> = new Set([
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

/** A running VMM process with its QMP connection. The process outlives this object, unless it is killed. */
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
  #onUnblocked: (() => void) | undefined;
  #watch: NodeJS.Timeout | undefined;
  #detached = false;
  #ended: string | undefined;
  #isOwnChild = false;
  #isHandlingExit = false;
  /** Whether this object has stopped the guest, or is about to. */
  #stopped = false;
  /** Why the guest cannot run any more, if the VMM has reported that. */
  #failure: string | undefined;
  #guestEnd: string | undefined;

  private constructor(identity: ProcessIdentity, qmp: QmpClient, dir: string, log: Logger) {
    this.identity = identity;
    this.qmp = qmp;
    this.#dir = dir;
    this.#log = log;
    const tell = (line: string): void => this.#onConsole?.(Buffer.from(`\n[releap] ${line}\n`));
    this.#enospc = new EnospcMonitor(qmp, log, tell, () => this.#onUnblocked?.());
    qmp.onEvent(({ event, data }) => {
      if (event === 'SHUTDOWN') this.#guestEnd ??= GUEST_ENDS.get(data['reason']);
      if (event === 'STOP' && !this.#stopped) void this.#handleUnexpectedStop();
    });
    qmp.onClose(() => void this.#handleExit());
    this.#watch = setInterval(() => {
      if (!isAlive(identity)) void this.#handleExit();
    }, WATCH_INTERVAL_MS);
    this.#watch.unref();
  }

  /** Folder of its sockets and its output. */
  get dir(): string {
    return this.#dir;
  }

  /** Its folder was renamed. */
  movedTo(dir: string): this {
    this.#dir = dir;
    return this;
  }

  /** Unix socket of the guest agent's port. */
  get agentSocketPath(): string {
    return join(this.dir, 'agent');
  }

  /**
   * Starts a VMM and waits for its QMP connection. The guest boots (`boot`), or the VMM waits for a saved state.
   * @throws Error with the VMM's last output when it does not start; its process has ended then
   */
  static async start(options: StartVmOptions): Promise<Vm> {
    const { dir, log } = options;
    const { child, identity, fate } = await startVmm(options);
    try {
      const qmp = await QmpClient.connect(join(dir, 'qmp'), {
        deadlineMs: DEADLINES_MS.vmmStart,
        alive: () => fate.ended === undefined,
        ...(options.signal && { signal: options.signal }),
      });
      const vm = new Vm(identity, qmp, dir, log);
      vm.#isOwnChild = true;
      child.once('exit', () => {
        vm.#ended = fate.ended;
        void vm.#handleExit();
      });
      vm.#onConsole = options.onConsole;
      await vm.#connectConsole();
      return vm;
    } catch (error) {
      // A VMM that is ending by itself first reports why.
      const isEnding = (): boolean => fate.ended === undefined && options.signal?.aborted !== true;
      for (let waited = 0; waited < EXIT_GRACE_MS && isEnding(); waited += 10) {
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
      await killProcess(identity, DEADLINES_MS.vmmKill);
      const said = await lastOutput(dir);
      throw new Error(
        `the VMM did not start${fate.ended === undefined ? '' : ` (${fate.ended})`}: ${said || (error as Error).message}`,
        { cause: error },
      );
    }
  }

  /**
   * Adopts a VMM that an earlier process started.
   * @throws when exactly that process has ended or does not respond
   */
  static async adopt(options: {
    identity: ProcessIdentity;
    dir: string;
    /** Folder that its command line names; another one if the folder was renamed since. */
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
      deadlineMs: DEADLINES_MS.vmmAdopt,
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

  /** How the guest has shut its machine down, as text for users; undefined if it has not. */
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

  /** Calls back once, with a reason for users, when the VMM has ended; not after `detach` or `kill`. */
  onExit(listener: (reason: string) => void): void {
    if (this.#exitReason === undefined) this.#exitListeners.add(listener);
    else listener(this.#exitReason);
  }

  /** Calls back whenever a guest that was blocked on ENOSPC runs again. Its clock was stopped meanwhile. */
  onUnblocked(listener: () => void): void {
    this.#onUnblocked = listener;
  }

  /**
   * Loads a saved device state from an inherited descriptor; the guest's memory is mapped already. The guest is paused
   * afterwards.
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
    // The VMM then prints the reason and exits.
    await this.ended(DEADLINES_MS.vmmKill).catch(() => undefined);
    throw new Error('the VMM could not load the saved state');
  }

  /** Sets the listener for the guest's console output. */
  setConsole(listener: ((chunk: Buffer) => void) | undefined): void {
    this.#onConsole = listener;
  }

  async stop(): Promise<void> {
    this.#enospc.hold(true);
    this.#stopped = true;
    await this.qmp.execute('stop');
  }

  /** Whether this object has stopped the guest, or is about to. */
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
   * Handles a stop that this object did not request: an error in KVM or in the VMM, a panic, a watchdog. The guest would stay
   * stopped and look as if it ran, so its VMM is killed.
   */
  async #handleUnexpectedStop(): Promise<void> {
    let status: unknown;
    try {
      ({ status } = (await this.qmp.execute('query-status')) as { status?: unknown });
    } catch {
      // The VMM is ending, which the QMP connection reports.
      return;
    }
    const isExpected = this.#stopped || this.#enospc.waits;
    if (isExpected || this.#detached || TRANSIENT_STATES.has(status)) return;
    this.#log.error({ pid: this.identity.pid, status }, 'a guest was stopped by its VMM; ending it');
    await this.fail(`the micro-VM stopped by itself (${String(status).slice(0, 40)})`);
  }

  /** Kills a VMM whose guest lacks something that it had. Its disk is intact: this counts as a shut-down by the guest. */
  async endGuest(reason: string): Promise<void> {
    this.#guestEnd ??= reason;
    await this.fail(reason);
  }

  /** Kills a VMM whose guest cannot continue. Its end is reported with this reason. */
  async fail(reason: string): Promise<void> {
    this.#failure = reason;
    await killProcess(this.identity, DEADLINES_MS.vmmKill).catch((error: unknown) =>
      this.#log.error({ err: error }, 'a VMM could not be ended'),
    );
  }

  /** Pauses the guest while the host's disk is short of space. It is resumed automatically. */
  async pauseForSpace(isShort: () => boolean): Promise<void> {
    if (!this.#stopped) await this.#enospc.pause(isShort);
  }

  /** Whether the guest cannot respond because it is blocked on ENOSPC. */
  get waitsForSpace(): boolean {
    return this.#enospc.waits;
  }

  /** Whether the guest is blocked on ENOSPC, asked from the VMM. It is resumed automatically when there is space. */
  async isBlockedOnSpace(): Promise<boolean> {
    return await this.#enospc.look();
  }

  /**
   * Asks the VMM to quit, which closes its disks cleanly, and kills it if it does not. A qcow2 image that was not closed has
   * its dirty bit set, and the next open checks all of its metadata.
   */
  async quit(): Promise<void> {
    this.#exitListeners.clear();
    // The VMM may exit before it responds.
    await this.qmp.execute('quit', undefined, { deadlineMs: DEADLINES_MS.vmmQuit }).catch(() => undefined);
    this.detach();
    for (const end = performance.now() + DEADLINES_MS.vmmQuit; isAlive(this.identity); ) {
      if (performance.now() >= end) {
        this.#log.warn({ pid: this.identity.pid }, 'a VMM does not quit; killing it');
        break;
      }
      await new Promise((resolve) => setTimeout(resolve, 2));
    }
    await this.kill();
  }

  /** Kills the VMM, and resolves when the process has ended. */
  async kill(): Promise<void> {
    this.detach();
    await killProcess(this.identity, DEADLINES_MS.vmmKill);
  }

  /** Closes the connections; the VMM continues to run. */
  detach(): void {
    this.#detached = true;
    clearInterval(this.#watch);
    this.#exitListeners.clear();
    this.#console?.destroy();
    this.qmp.close();
  }

  async #connectConsole(): Promise<void> {
    // Without a client QEMU drops the guest's output, so that a guest never blocks on its console.
    const socket = await connectUnix(join(this.dir, 'console'), { alive: () => isAlive(this.identity) });
    socket.unref();
    socket.on('data', (chunk: Buffer) => this.#onConsole?.(chunk));
    socket.on('error', (error) => this.#log.warn({ err: error }, 'console connection broke'));
    this.#console = socket;
  }

  async #handleExit(): Promise<void> {
    if (this.#detached || this.#isHandlingExit) return;
    this.#isHandlingExit = true;
    clearInterval(this.#watch);
    // The parent process learns how a VMM ended shortly after its sockets were closed.
    const isEnding = (): boolean => isAlive(this.identity) || (this.#isOwnChild && this.#ended === undefined);
    for (let waited = 0; waited < EXIT_GRACE_MS && isEnding(); waited += 10) {
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
    if (isAlive(this.identity)) {
      // A VMM that cannot be controlled must not run.
      this.#log.error({ pid: this.identity.pid }, 'the VMM closed its control connection; killing it');
      await killProcess(this.identity, DEADLINES_MS.vmmKill).catch((error: unknown) =>
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
