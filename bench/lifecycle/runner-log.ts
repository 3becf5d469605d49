import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { until } from '../processes.ts';

/** What the runner has logged of one operation. */
export interface LoggedSteps {
  /** When, in milliseconds of the wall clock. */
  time: number;
  /** Milliseconds; of a capture, since it began. */
  steps: Record<string, number>;
}

/** The steps of pauses, forks and snapshots, as the runner of a service logs them. */
export class RunnerLog {
  readonly #path: string;
  readonly #seen = new Map<string, number>();

  constructor(home: string) {
    this.#path = join(home, 'log/runner.log');
  }

  /**
   * The first line of this kind about this sandbox that was not asked for yet; waits for it.
   * @param uuid bare
   */
  async next(message: string, uuid: string): Promise<LoggedSteps> {
    const key = `${message} ${uuid}`;
    const seen = this.#seen.get(key) ?? 0;
    let found: string | undefined;
    await until(`'${message}' in the log`, async () => {
      const text = await readFile(this.#path, 'utf8');
      const lines = text
        .slice(0, text.lastIndexOf('\n') + 1)
        .split('\n')
        .filter((line) => line.includes(`"msg":"${message}"`) && line.includes(`"vm":"${uuid}"`));
      found = lines[seen];
      return found !== undefined;
    });
    this.#seen.set(key, seen + 1);
    return JSON.parse(found ?? '') as LoggedSteps;
  }
}
