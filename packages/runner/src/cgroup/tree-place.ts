/** Where the cgroups of a tree lie. */
import { mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { CONTROLLERS, treeProperties } from './cgroup-files.ts';
import type { CgroupLayout, Controller, TreeLimits } from './cgroup-files.ts';
import { removeFolder } from './remove-folder.ts';
import { isActive, isBootedBySystemd, openUnit } from './systemd-unit.ts';

export interface TreePlace {
  /** The folder of the tree in the hierarchy of each controller. */
  parents: Map<Controller, string>;
  /** The unit of systemd whose cgroup it is. That has the limits of the tree already. */
  unit?: string;
}

/**
 * Makes the folders of a tree: in the cgroup of a unit of systemd, or else at the top of each hierarchy.
 * @param name of the folders, or of the unit
 * @throws when the controllers cannot be had, naming the file that refused
 */
export async function placeTree(
  layout: CgroupLayout,
  name: string,
  description: string,
  limits: TreeLimits,
): Promise<TreePlace> {
  if (layout.version === 1) {
    const parents = new Map<Controller, string>();
    for (const controller of CONTROLLERS) {
      const root = layout.roots[controller];
      if (root !== undefined) parents.set(controller, join(root, name));
    }
    for (const folder of new Set(parents.values())) await mkdir(folder, { recursive: true });
    return { parents };
  }
  const unit = `${name}.service`;
  const former = isBootedBySystemd() ? await inUse(layout.root, name, unit) : name;
  if (former === undefined) {
    const folder = join(layout.root, await openUnit(unit, description, treeProperties(limits)));
    await moveAside(folder);
    await enable(folder);
    return { parents: inOneFolder(folder), unit };
  }
  const folder = join(layout.root, former);
  await enable(layout.root);
  await mkdir(folder, { recursive: true });
  await enable(folder);
  return { parents: inOneFolder(folder) };
}

/** A cgroup for the process of a unit: none is in a cgroup whose children have controllers. */
export const OF_UNIT = 'unit';

async function moveAside(folder: string): Promise<void> {
  const aside = join(folder, OF_UNIT);
  await mkdir(aside, { recursive: true });
  const pids = (await readFile(join(folder, 'cgroup.procs'), 'utf8')).split('\n').filter(Boolean);
  for (const pid of pids) await writeFile(join(aside, 'cgroup.procs'), pid);
}

/** Removes the folder of a tree in which nothing is left. Repeatable. */
export async function removeTree(folder: string): Promise<void> {
  await removeFolder(join(folder, OF_UNIT));
  await removeFolder(folder);
}

/**
 * The folder in which cgroups lie although no unit holds them: earlier releases made it beside the units of systemd, and one of a unit may be
 * left that has ended. It is used as long as cgroups are in it, as what a process has been charged for does not move with it, and is removed
 * after that.
 */
async function inUse(root: string, former: string, unit: string): Promise<string | undefined> {
  for (const name of (await isActive(unit)) ? [former] : [former, unit]) {
    const folder = join(root, name);
    const entries = await readdir(folder, { withFileTypes: true }).catch(() => []);
    if (entries.some((entry) => entry.isDirectory() && entry.name !== OF_UNIT)) return name;
    await removeTree(folder);
  }
  return undefined;
}

/** All controllers of version 2 have one hierarchy. */
function inOneFolder(folder: string): Map<Controller, string> {
  return new Map([...CONTROLLERS, 'io' as const].map((controller) => [controller, folder]));
}

/** Hands the controllers down to the children of a version 2 cgroup. */
async function enable(folder: string): Promise<void> {
  const file = join(folder, 'cgroup.subtree_control');
  const words = async (name: string): Promise<string[]> =>
    (await readFile(join(folder, name), 'utf8')).trim().split(' ');
  const available = await words('cgroup.controllers');
  const wanted = ['cpu', 'memory', 'pids', ...(available.includes('io') ? ['io'] : [])];
  const have = await words('cgroup.subtree_control');
  const missing = wanted.filter((controller) => !have.includes(controller));
  if (missing.length === 0) return;
  try {
    await writeFile(file, missing.map((controller) => `+${controller}`).join(' '));
  } catch (error) {
    throw new Error(
      `the cgroup controllers ${missing.join(', ')} cannot be enabled in ${file} (${(error as Error).message}); ` +
        'a container needs a writable cgroup namespace whose root has no processes of its own',
      { cause: error },
    );
  }
}
