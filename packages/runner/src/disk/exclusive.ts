import { KeyedSemaphore } from '../budget/keyed-semaphore.ts';

const paths = new KeyedSemaphore();

/** Runs `work` after all earlier work on the same path in this process has ended. */
export async function exclusive<T>(path: string, work: () => Promise<T>): Promise<T> {
  return await paths.run(path, work);
}
