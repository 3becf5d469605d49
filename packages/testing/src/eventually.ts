import { setTimeout as sleep } from 'node:timers/promises';

/**
 * Factor of every deadline of tests, for a machine that is far slower than usual; in the environment, as its processes are started
 * by the runner of tests.
 */
export const PATIENCE = Number(process.env['RELEAP_TEST_PATIENCE'] ?? 1);

/** For a machine that does many other things at the same time: no test is about how long something takes. */
const DEADLINE_MS = 120_000;
/** What is looked at is often all of /proc, or a command in a guest: many looks would slow down what they wait for. */
const PAUSE_MS = { first: 50, longest: 300 };

/**
 * Tries until `attempt` neither throws nor gives undefined or false, and gives what it gave.
 * @throws what the last attempt threw, or that it was never so
 */
export async function eventually<T>(
  what: string,
  attempt: () => Promise<T | undefined | false> | T | undefined | false,
  deadlineMs = DEADLINE_MS,
): Promise<T> {
  const end = performance.now() + deadlineMs * PATIENCE;
  for (let pause = PAUSE_MS.first; ; pause = Math.min(pause * 1.3, PAUSE_MS.longest)) {
    let failure: unknown;
    try {
      const result = await attempt();
      if (result !== undefined && result !== false) return result;
    } catch (error) {
      failure = error;
    }
    if (performance.now() > end) throw new Error(`never: ${what}`, { cause: failure });
    await sleep(pause);
  }
}

/** For a machine that does many other things at the same time. */
export const PATIENCE_MS = 120_000;
const FIRST_PAUSE_MS = 5;
const LONGEST_PAUSE_MS = 50;

/** Waits for something that has no event of its own: looks often at first, then less often. */
export async function until(condition: () => boolean | Promise<boolean>, ms = PATIENCE_MS): Promise<void> {
  const end = performance.now() + ms * PATIENCE;
  for (let pause = FIRST_PAUSE_MS; !(await condition()); pause = Math.min(pause * 1.5, LONGEST_PAUSE_MS)) {
    if (performance.now() > end)
      throw new Error(`did not come true within ${ms * PATIENCE} ms: ${condition.toString()}`);
    await sleep(pause);
  }
}
