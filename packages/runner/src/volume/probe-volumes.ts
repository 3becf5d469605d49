/** Whether this host can mount volumes in sandboxes. */
import { existsSync } from 'node:fs';
import { virtiofsdFolder, volumeProbe } from '@releap/contract/volume-probe';
import type { Logger } from 'pino';
import { ProcessError, runToExit } from '../process/index.ts';

const RETRY_MS = 5 * 60_000;
/** How often a host whose set-up makes the parts after the start looks for them. */
const LOOK_MS = 2_000;

/**
 * @param buildDir folder that set-up fills
 * @returns the first part that does not work, and why, in the words of `rlp doctor`; undefined when all work
 */
export async function findVolumeProblem(buildDir: string, signal?: AbortSignal): Promise<string | undefined> {
  const { program, args, deadlineMs } = volumeProbe(buildDir);
  try {
    const { code, stderr } = await runToExit(program, args, { deadlineMs, signal });
    return code === 0 ? undefined : stderr.trim() || 'no reason was given';
  } catch (error) {
    if (error instanceof ProcessError) return error.message;
    throw error;
  }
}

/** Tries it at the start and, until it works, again: the host may have been too busy, or the operator has repaired it. */
export class VolumeProbe {
  readonly #buildDir: string;
  readonly #log: Logger;
  #problem: string | undefined;
  #timer: NodeJS.Timeout | undefined;
  #trial: Promise<void> = Promise.resolve();
  readonly #stop = new AbortController();

  private constructor(buildDir: string, log: Logger) {
    this.#buildDir = buildDir;
    this.#log = log;
  }

  static async open(buildDir: string, log: Logger): Promise<VolumeProbe> {
    const probe = new VolumeProbe(buildDir, log);
    await probe.#try();
    return probe;
  }

  get works(): boolean {
    return this.#problem === undefined;
  }

  /** @param onWorks called once, when volumes can be mounted after all */
  watch(onWorks: () => void, retryMs = RETRY_MS): void {
    if (this.works || this.#stop.signal.aborted) return;
    const delay = this.#isMade() ? retryMs : Math.min(LOOK_MS, retryMs);
    this.#timer = setTimeout(() => {
      if (this.#isMade()) this.#trial = this.#retry(onWorks, retryMs);
      else this.watch(onWorks, retryMs);
    }, delay).unref();
  }

  /** Ends a trial that is under way. */
  async close(): Promise<void> {
    this.#stop.abort();
    clearTimeout(this.#timer);
    await this.#trial;
  }

  /** Whether set-up has made the last part. */
  #isMade(): boolean {
    return existsSync(virtiofsdFolder(this.#buildDir));
  }

  async #retry(onWorks: () => void, retryMs: number): Promise<void> {
    try {
      await this.#try();
    } catch (error) {
      this.#log.warn({ err: error }, 'whether this host can mount volumes is unknown');
    }
    if (this.#stop.signal.aborted) return;
    if (!this.works) return this.watch(onWorks, retryMs);
    this.#log.info('this host can mount volumes now');
    onWorks();
  }

  async #try(): Promise<void> {
    if (!this.#isMade()) {
      this.#problem = 'set-up has not made what they need';
      this.#log.info('volumes can be mounted when set-up has made what they need');
      return;
    }
    const { signal } = this.#stop;
    const problem = await findVolumeProblem(this.#buildDir, signal);
    if (signal.aborted) return;
    if (problem !== undefined && problem !== this.#problem)
      this.#log.warn(`this host cannot mount volumes: ${problem}`);
    this.#problem = problem;
  }
}
