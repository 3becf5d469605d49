/** Programs of the installation, as they were when the service started. */
import { copyFile, link, mkdir, readdir, rename, rm, stat } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { identifyProcess } from '../vmm/process-identity.ts';

/**
 * Set-up may replace a program beneath a running service, whose protocol the new one need not speak. So each service keeps the one that
 * was there at its start, also for processes that its supervisor, the parent of this one, starts later.
 * @param folder has nothing else, in a folder for each service
 * @returns path of the program that this service uses
 */
export async function pinnedProgram(source: string, folder: string): Promise<string> {
  const { pid, startTicks, bootId } = identifyProcess(process.ppid);
  const service = `${pid}-${startTicks}-${bootId}`;
  const pinned = join(folder, service, basename(source));
  await mkdir(join(folder, service), { recursive: true, mode: 0o700 });
  if (!(await exists(pinned))) {
    const partial = `${pinned}.partial`;
    await rm(partial, { force: true });
    // Set-up renames a new file to the place of the old one. Another file system: a copy.
    await link(source, partial).catch(() => copyFile(source, partial));
    await rename(partial, pinned);
  }
  for (const name of await readdir(folder))
    if (name !== service) await rm(join(folder, name), { recursive: true, force: true });
  return pinned;
}

async function exists(path: string): Promise<boolean> {
  return await stat(path).then(
    () => true,
    () => false,
  );
}
