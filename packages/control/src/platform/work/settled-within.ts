/** Resolves when all have settled, or so many milliseconds have passed. */
export async function settledWithin(all: readonly Promise<unknown>[], ms: number): Promise<void> {
  const settled = Promise.allSettled(all);
  if (ms === Infinity) return void (await settled);
  let timer: NodeJS.Timeout | undefined;
  await Promise.race([settled, new Promise((resolve) => (timer = setTimeout(resolve, ms)))]);
  clearTimeout(timer);
}
