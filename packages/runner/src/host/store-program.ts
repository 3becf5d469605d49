/** The program that mounts object stores in guests. At the first start of a service, set-up makes it beside the running service. */
import { existsSync } from 'node:fs';
import { stat } from 'node:fs/promises';
import { storeMountProgram } from '@releap/contract/store-mount-program';
import { fileSha256 } from '../disk/file-sha256.ts';
import type { GuestProgram } from '../guest/index.ts';
import { pinnedProgram } from './pinned-program.ts';

/** How often it is looked for until it is there. */
const LOOK_MS = 2_000;

export class StoreProgram {
  readonly #source: string;
  readonly #folder: string;
  #isMade: boolean;
  #found: Promise<GuestProgram> | undefined;
  #timer: NodeJS.Timeout | undefined;

  private constructor(source: string, folder: string, isMade: boolean) {
    this.#source = source;
    this.#folder = folder;
    this.#isMade = isMade;
  }

  /**
   * @param buildDir folder that set-up fills
   * @param folder of the programs that this service uses (`pinnedProgram`)
   */
  static async open(buildDir: string, folder: string): Promise<StoreProgram> {
    const source = storeMountProgram(buildDir);
    const isMade = existsSync(source);
    if (isMade) await pinnedProgram(source, folder);
    return new StoreProgram(source, folder, isMade);
  }

  /** As it was at the start, or since `watch` has told that it is made. */
  get isMade(): boolean {
    return this.#isMade;
  }

  /** @throws when set-up has not made it */
  async find(): Promise<GuestProgram> {
    if (this.#found === undefined && !existsSync(this.#source))
      throw new Error(
        'what mounts of object stores need is not made yet: set-up makes it after the first start of the host; try again then',
      );
    const found = (this.#found ??= this.#pin());
    found.catch(() => {
      if (this.#found === found) this.#found = undefined;
    });
    return await found;
  }

  /** @param onMade called once, when set-up has made what was missing */
  watch(onMade: () => void, everyMs = LOOK_MS): void {
    if (this.#isMade) return;
    this.#timer = setInterval(() => {
      if (!existsSync(this.#source)) return;
      this.close();
      this.#isMade = true;
      onMade();
    }, everyMs).unref();
  }

  close(): void {
    clearInterval(this.#timer);
  }

  async #pin(): Promise<GuestProgram> {
    const path = await pinnedProgram(this.#source, this.#folder);
    const [digest, { size: bytes }] = await Promise.all([fileSha256(path), stat(path)]);
    return { path, digest, bytes };
  }
}
