/** Runs jobs in the order given, as many at a time as their classes allow. */
export interface PoolLimits<Class extends string> {
  /** Jobs at a time, of any class. */
  all: number;
  /** Jobs of one class at a time. */
  of: Record<Class, number>;
}

/**
 * Starts the first job whose classes all have a free place whenever one ends.
 * @param work must not reject: a failure is a result
 */
export async function runPool<Class extends string, Job extends { classes: readonly Class[] }>(
  jobs: readonly Job[],
  limits: PoolLimits<Class>,
  work: (job: Job) => Promise<void>,
): Promise<void> {
  const waiting = [...jobs];
  const running = new Map<Job, Promise<void>>();
  for (;;) {
    const next = waiting.findIndex(
      (job) =>
        running.size < limits.all &&
        job.classes.every(
          (name) => [...running.keys()].filter((one) => one.classes.includes(name)).length < limits.of[name],
        ),
    );
    const [job] = next === -1 ? [] : waiting.splice(next, 1);
    if (job !== undefined) {
      running.set(
        job,
        work(job).finally(() => running.delete(job)),
      );
    } else if (running.size > 0) await Promise.race(running.values());
    else return;
  }
}
