/**
 * The loop of a server that claims work: it is woken by events, and a periodic task asks for a pass in case one was missed. Requests
 * that arrive during a pass are one further pass. It ends with the server.
 */
export interface WorkLoop {
  /** Asks for a pass that starts after this call, and returns at once. */
  readonly kick: () => void;
  /** The same; resolves when that pass has ended, or the loop is closed. @throws what a step has thrown */
  readonly sweep: () => Promise<void>;
  /** Resolves when no pass runs or is requested. */
  readonly idle: () => Promise<void>;
  /** Starts no further step, and waits for those that run. */
  readonly close: () => Promise<void>;
}

export interface WorkLoopOptions {
  /** Claims and does a part of what is due. @returns true: there may be more, and it is called again in this pass */
  step: (signal: AbortSignal) => Promise<boolean | void>;
  /** So many steps run at a time. */
  lanes?: number;
  /** Of passes that only `kick` has asked for. */
  onError: (error: unknown) => void;
}

export function createWorkLoop({ step, lanes = 1, onError }: WorkLoopOptions): WorkLoop {
  const stop = new AbortController();
  const { signal } = stop;
  let running: Promise<void> | undefined;
  /** The pass that was asked for and has not begun. */
  let asked: PromiseWithResolvers<void> | undefined;

  async function lane(): Promise<void> {
    for (let isMore = true; isMore && !signal.aborted; ) isMore = (await step(signal)) === true;
  }

  async function passes(): Promise<void> {
    for (let pass = asked; pass !== undefined; pass = asked) {
      asked = undefined;
      const ended = await Promise.allSettled(Array.from({ length: lanes }, lane));
      const failed = ended.find((one) => one.status === 'rejected');
      if (failed === undefined) pass.resolve();
      else pass.reject(failed.reason);
    }
    running = undefined;
  }

  function ask(): Promise<void> {
    asked ??= Promise.withResolvers();
    const { promise } = asked;
    running ??= passes();
    return promise;
  }

  return {
    kick() {
      if (!signal.aborted && asked === undefined) ask().catch(onError);
    },
    async sweep() {
      if (!signal.aborted) await ask();
    },
    async idle() {
      for (let pass = running; pass !== undefined; pass = running) await pass;
    },
    async close() {
      stop.abort();
      await running;
    },
  };
}
