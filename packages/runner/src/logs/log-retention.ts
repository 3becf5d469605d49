import { readdir, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import type { Logger } from 'pino';

/** How long the logs of a sandbox can be read after its end. */
const KEEP_MS = 7 * 24 * 60 * 60_000;
/** Newest first; the rest goes, however young: 2000 sandboxes may leave at most 8 GB. */
const KEEP_SANDBOXES = 2_000;
const TIDY_EVERY_MS = 10 * 60_000;

/** Removes the logs of sandboxes that have ended long ago, so that logs cannot fill a disk. */
export class LogRetention {
  readonly #timer: NodeJS.Timeout;

  constructor(folder: string, isAlive: (vmId: string) => boolean, log: Logger) {
    this.#timer = setInterval(() => {
      tidy(folder, isAlive).catch((error: unknown) => log.warn({ err: error }, 'old logs not removed'));
    }, TIDY_EVERY_MS);
    this.#timer.unref();
  }

  close(): void {
    clearInterval(this.#timer);
  }
}

/** @returns the ids whose logs were removed */
export async function tidy(
  folder: string,
  isAlive: (vmId: string) => boolean,
  { keepMs = KEEP_MS, keepSandboxes = KEEP_SANDBOXES, now = Date.now() } = {},
): Promise<string[]> {
  const ended: { vmId: string; at: number }[] = [];
  for (const vmId of await readdir(folder).catch(() => [])) {
    if (isAlive(vmId)) continue;
    const { mtimeMs } = await stat(join(folder, vmId));
    ended.push({ vmId, at: mtimeMs });
  }
  ended.sort((a, b) => b.at - a.at);
  const old = ended.filter(({ at }, index) => index >= keepSandboxes || now - at > keepMs);
  for (const { vmId } of old) await rm(join(folder, vmId), { recursive: true, force: true });
  return old.map(({ vmId }) => vmId);
}
