import { closeSync, fsyncSync, mkdirSync, openSync, readFileSync, renameSync, writeSync } from 'node:fs';
import { dirname } from 'node:path';
import { isUuid } from '@releap/contract/ids';

/** The deployment that this runner has joined, in a file of its home. Written once, at the first welcome. */
export class Deployment {
  readonly #path: string;
  #id: string | undefined;

  private constructor(path: string, id: string | undefined) {
    this.#path = path;
    this.#id = id;
  }

  /** @throws when the file has other content: to guess would be to act for a deployment that is not ours. */
  static open(path: string): Deployment {
    let content = '';
    try {
      content = readFileSync(path, 'utf8').trim();
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
    }
    if (content !== '' && !isUuid(content))
      throw new Error(`${path} does not hold a deployment id; remove it to join a deployment again`);
    return new Deployment(path, content === '' ? undefined : content);
  }

  /** Undefined before the first welcome. */
  get id(): string | undefined {
    return this.#id;
  }

  /** @returns false when the runner belongs to another deployment */
  join(id: string): boolean {
    if (this.#id !== undefined) return this.#id === id;
    mkdirSync(dirname(this.#path), { recursive: true, mode: 0o700 });
    const next = `${this.#path}.next`;
    const file = openSync(next, 'w', 0o600);
    try {
      writeSync(file, `${id}\n`);
      fsyncSync(file);
    } finally {
      closeSync(file);
    }
    renameSync(next, this.#path);
    this.#id = id;
    return true;
  }
}
