/** Like Promise.all, but when it rejects, too, nothing is at work any more. */
export async function settled<T extends readonly unknown[]>(
  work: {
    readonly [K in keyof T]: Promise<T[K]>;
  },
): Promise<{ -readonly [K in keyof T]: T[K] }> {
  await Promise.allSettled(work);
  return await Promise.all(work);
}
