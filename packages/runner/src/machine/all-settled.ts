/** Like Promise.all, but settles only when all promises have settled, also when one rejects. */
export async function allSettled<T extends readonly unknown[]>(
  work: {
    readonly [K in keyof T]: Promise<T[K]>;
  },
): Promise<{ -readonly [K in keyof T]: T[K] }> {
  await Promise.allSettled(work);
  return await Promise.all(work);
}
