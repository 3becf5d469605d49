import { mock } from 'node:test';

/** Does something right before a method is called for the first time. */
export function firstBefore<T extends object>(
  owner: T,
  method: keyof T & string,
  work: (self: T) => Promise<unknown>,
): void {
  const original = owner[method] as (...args: unknown[]) => Promise<unknown>;
  let done = false;
  mock.method(
    owner,
    method as never,
    async function (this: T, ...args: unknown[]) {
      if (!done) {
        done = true;
        await work(this);
      }
      return await original.apply(this, args);
    } as never,
  );
}
