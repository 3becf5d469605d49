import { spawn } from 'node:child_process';
import { open } from 'node:fs/promises';
import type { FileHandle } from 'node:fs/promises';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

const SCRIPT = fileURLToPath(new URL('./memory.pl', import.meta.url));
const DEADLINE_MS = 120_000;

/**
 * A template's memory, in a memfd that is sealed against writing.
 *
 * A VMM opens its memory for writing even where it maps it privately (before QEMU 8.2 it cannot be told otherwise) and
 * keeps that descriptor. With a plain file, a guest that broke out into its VMM could write through it into the
 * kernel of every other sandbox made from the same template. The seal makes that impossible for whoever has the
 * descriptor. The memory goes when its last user does; the file on the disk stays the original.
 */
export class SealedMemory implements AsyncDisposable {
  readonly #file: FileHandle;

  private constructor(file: FileHandle) {
    this.#file = file;
  }

  /** Copies `path`; takes about a millisecond a megabyte that is not zero. */
  static async load(path: string): Promise<SealedMemory> {
    const child = spawn('perl', [SCRIPT, 'seal', path], {
      stdio: ['pipe', 'pipe', 'pipe'],
      env: { LC_ALL: 'C' },
    });
    const timer = setTimeout(() => child.kill('SIGKILL'), DEADLINE_MS);
    let stderr = '';
    child.stderr.on('data', (chunk: Buffer) => {
      stderr = (stderr + chunk.toString('utf8')).slice(-1024);
    });
    child.stdin.on('error', () => undefined);
    try {
      const descriptor = await new Promise<string>((resolve, reject) => {
        child.once('error', (error) => reject(new Error(`cannot start perl: ${error.message}`)));
        child.once('close', () =>
          reject(new Error(`template memory ${path} cannot be loaded: ${stderr.trim()}`)),
        );
        createInterface(child.stdout).once('line', resolve);
      });
      return new SealedMemory(await open(`/proc/${child.pid}/fd/${Number(descriptor)}`, 'r+'));
    } finally {
      clearTimeout(timer);
      child.stdin.end();
    }
  }

  /** Descriptor to hand to a VMM, valid until disposed. */
  get fd(): number {
    return this.#file.fd;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#file.close();
  }
}
