const tails = new Map<string, Promise<unknown>>();

/** Runs `work` after all earlier work on the same path in this process has ended. */
export async function exclusive<T>(path: string, work: () => Promise<T>): Promise<T> {
  const before = tails.get(path);
  const mine = (async () => {
    await before?.catch(() => undefined);
    return await work();
  })();
  tails.set(path, mine);
  try {
    return await mine;
  } finally {
    if (tails.get(path) === mine) tails.delete(path);
  }
}
