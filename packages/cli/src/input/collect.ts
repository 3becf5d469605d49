import { interruptedError } from '../cli-error.ts';
import type { Context } from '../terminal.ts';

/** All of stdin or of a file, also when the user interrupts a read that would never end. Undefined: it has more. */
export async function collect(
  { terminal: { stdin }, signal }: Context,
  source: AsyncIterable<Uint8Array>,
  maxBytes: number,
): Promise<Buffer<ArrayBuffer> | undefined> {
  const chunks: Uint8Array[] = [];
  let size = 0;
  const stop = (): void => void (stdin as Partial<NodeJS.ReadStream>).destroy?.();
  signal.addEventListener('abort', stop, { once: true });
  try {
    for await (const chunk of source) {
      size += chunk.length;
      if (size > maxBytes) return undefined;
      chunks.push(chunk);
    }
  } catch (error) {
    if (signal.aborted) throw interruptedError();
    throw error;
  } finally {
    signal.removeEventListener('abort', stop);
  }
  if (signal.aborted) throw interruptedError();
  return Buffer.concat(chunks);
}
