import { createInterface } from 'node:readline/promises';
import { interruptedError } from '../cli-error.ts';
import type { Context } from '../terminal.ts';

/** Asks on the terminal; anything but y or yes is no. */
export async function confirm({ terminal, signal }: Context, question: string): Promise<boolean> {
  const lines = createInterface({ input: terminal.stdin, output: terminal.stderr });
  try {
    const answer = await lines.question(`${question} [y/N] `, { signal });
    return /^y(es)?$/i.test(answer.trim());
  } catch (error) {
    if (signal.aborted) throw interruptedError();
    throw error;
  } finally {
    lines.close();
  }
}
