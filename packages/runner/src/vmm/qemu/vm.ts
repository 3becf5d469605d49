import { readFile } from 'node:fs/promises';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import type { Logger } from 'pino';
import { connectUnix } from '../connect-unix.ts';
import { StateRefusedError } from '../driver.ts';
import type { AdoptOptions, DeviceState, ExplainKill, Jail, StartOptions, Vm } from '../driver.ts';
import { isAlive, killProcess } from '../process-identity.ts';
import type { ProcessIdentity } from '../process-identity.ts';
import { DEADLINES_MS } from '../tuning.ts';
import { option } from './command-line.ts';
import { QemuDisks } from './disks.ts';
import { EnospcMonitor } from './enospc-monitor.ts';
import { QmpClient } from './qmp.ts';
import { StateFile } from './save-state.ts';
import { KILLED, lastOutput, startVmm } from './start-vmm.ts';
import { DESCRIPTORS } from './vmm-paths.ts';

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

/** A running QEMU with its QMP connection. */
export class QemuVm implements Vm {
  readonly identity: ProcessIdentity;
  readonly qmp: QmpClient;
  readonly disks: QemuDisks;
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
  #explainKill: ExplainKill | undefined;
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
    this.disks = new QemuDisks(qmp);
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

  get dir(): string {
    return this.#dir;
  }

  movedTo(dir: string): this {
    this.#dir = dir;
    return this;
  }

  get agentSocketPath(): string {
    return join(this.dir, 'agent');
  }

  static async start(options: StartOptions): Promise<QemuVm> {
    const { dir, log } = options;
    const { child, identity, fate } = await startVmm(options);
    try {
      const qmp = await QmpClient.connect(join(dir, 'qmp'), {
        deadlineMs: DEADLINES_MS.vmmStart,
        alive: () => fate.ended === undefined,
        ...(options.signal && { signal: options.signal }),
      });
      const vm = new QemuVm(identity, qmp, dir, log);
      vm.#isOwnChild = true;
      vm.#explainKill = options.explainKill;
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
        `the VMM did not start${fate.ended === undefined ? '' : ` (${fate.ended})`}: ${options.explainKill?.() ?? (said || (error as Error).message)}`,
        { cause: error },
      );
    }
  }

  static async adopt(options: AdoptOptions): Promise<QemuVm> {
    const { identity, dir, startedIn, log } = options;
    if (!isAlive(identity)) throw new Error(`the VMM (process ${identity.pid}) has ended`);
    const command = await readFile(`/proc/${identity.pid}/cmdline`, 'latin1');
    if (!command.includes(option(startedIn)))
      throw new Error(`process ${identity.pid} is not the VMM of ${dir}`);
    const qmp = await QmpClient.connect(join(dir, 'qmp'), {
      deadlineMs: DEADLINES_MS.vmmAdopt,
      alive: () => isAlive(identity),
    });
    const vm = new QemuVm(identity, qmp, dir, log);
    vm.#explainKill = options.explainKill;
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

  get guestEnd(): string | undefined {
    return this.#guestEnd;
  }

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

  onExit(listener: (reason: string) => void): void {
    if (this.#exitReason === undefined) this.#exitListeners.add(listener);
    else listener(this.#exitReason);
  }

  onUnblocked(listener: () => void): void {
    this.#onUnblocked = listener;
  }

  async loadState(): Promise<void> {
    try {
      await this.#loadState();
    } catch (error) {
      const said = await lastOutput(this.#dir);
      // The end of a VMM that was killed meanwhile proves nothing about the state.
      const Failure = said.includes('load of migration failed') ? StateRefusedError : Error;
      throw new Failure(`the VM could not be restored: ${said || (error as Error).message}`, {
        cause: error,
      });
    }
  }

  async #loadState(): Promise<void> {
    const { qmp } = this;
    const arrived = qmp.waitEvent(
      ({ event, data }) =>
        event === 'MIGRATION' && (data['status'] === 'completed' || data['status'] === 'failed'),
      DEADLINES_MS.loadState,
    );
    arrived.catch(() => undefined);
    await Promise.all([
      qmp.execute('migrate-set-capabilities', { capabilities: STATE_CAPABILITIES }),
      qmp.execute('migrate-set-parameters', { 'announce-rounds': 0 }),
      qmp.execute('migrate-incoming', { uri: `fd:${DESCRIPTORS.state}` }),
    ]);
    const { data } = await arrived;
    if (data['status'] === 'completed') return;
    // The VMM then prints the reason and exits.
    await this.ended(DEADLINES_MS.vmmKill).catch(() => undefined);
    throw new Error('the VMM could not load the saved state');
  }

  async prepareState(jail: Jail): Promise<DeviceState> {
    return await StateFile.prepare(this.qmp, jail);
  }

  setConsole(listener: ((chunk: Buffer) => void) | undefined): void {
    this.#onConsole = listener;
  }

  async stop(): Promise<void> {
    this.#enospc.hold(true);
    this.#stopped = true;
    await this.qmp.execute('stop');
  }

  get isStopped(): boolean {
    return this.#stopped;
  }

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

  async endGuest(reason: string): Promise<void> {
    this.#guestEnd ??= reason;
    await this.fail(reason);
  }

  async fail(reason: string): Promise<void> {
    this.#failure = reason;
    await killProcess(this.identity, DEADLINES_MS.vmmKill).catch((error: unknown) =>
      this.#log.error({ err: error }, 'a VMM could not be ended'),
    );
  }

  async pauseForSpace(isShort: () => boolean): Promise<void> {
    if (!this.#stopped) await this.#enospc.pause(isShort);
  }

  get waitsForSpace(): boolean {
    return this.#enospc.waits;
  }

  async isBlockedOnSpace(): Promise<boolean> {
    return await this.#enospc.look();
  }

  /** A qcow2 image that was not closed has its dirty bit set, and the next open checks all of its metadata. */
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

  async kill(): Promise<void> {
    this.detach();
    await killProcess(this.identity, DEADLINES_MS.vmmKill);
  }

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

  /** How one that was adopted has ended is not known. */
  get #mayBeKilled(): boolean {
    return this.#ended === undefined || this.#ended === KILLED;
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
      this.#failure ??
      (this.#mayBeKilled ? this.#explainKill?.() : undefined) ??
      `the micro-VM ended by itself${this.#ended === undefined ? '' : ` (${this.#ended})`}`;
    this.#console?.destroy();
    this.qmp.close();
    const listeners = [...this.#exitListeners];
    this.#exitListeners.clear();
    for (const listener of listeners) listener(this.#exitReason);
  }
}

const STATE_CAPABILITIES = [{ capability: 'events', state: true }];
