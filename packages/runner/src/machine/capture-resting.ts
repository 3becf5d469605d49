import { rm } from 'node:fs/promises';
import {
  belowTop,
  growChain,
  isTopEmpty,
  linkOrCopy,
  readChain,
  saveChain,
  shareChain,
  topBytes,
} from '../disk/disk-chain.ts';
import type { LocalCopies } from '../disk/local-copies.ts';
import { explainFullDisk } from '../memory/memory-file.ts';
import type { Platform } from '../template/machine-size.ts';
import { shareSuspendImage } from './share-suspend-image.ts';
import { type CapturedImage, describeMemory, type SnapshotFolders } from './snapshot-folder.ts';
import { MemoryBlockedError, NotResumableError, SuspendImage, type Suspension } from './suspend-image.ts';
import { heldImagePath, type VmFolders } from './vm-folder.ts';

export interface RestingSources {
  folders: Pick<VmFolders, 'keep'>;
  snapshots: Pick<SnapshotFolders, 'begin' | 'complete' | 'abandon'>;
  platform: Platform;
  localCopies: Pick<LocalCopies, 'localPath'>;
}

/**
 * Captures a sandbox that does not run as a snapshot, with its memory if it is paused. Its disk gets a new top layer, as the captured ones
 * must not change any more; one that is empty already, as after an earlier attempt, is that layer.
 */
export async function captureResting(
  { folders, snapshots, platform, localCopies }: RestingSources,
  id: string,
  vmId: string,
  image: CapturedImage,
): Promise<void> {
  const keep = folders.keep(vmId);
  const chain = await readChain(keep);
  if (chain === undefined) throw new Error(`the disk of VM ${vmId} is not on this machine any more`);
  const memory = await memoryOf(keep, platform);
  const folder = await snapshots.begin(id);
  try {
    const isEmpty = chain.layers.length > 1 && (await isTopEmpty(chain));
    if (!isEmpty) await growChain(chain, true);
    const content = isEmpty ? belowTop(chain) : chain;
    await saveChain(await shareChain(content, folder), true);
    if (memory !== undefined) {
      await shareSuspendImage(keep, folder);
      await rm(heldImagePath(folder), { force: true });
    }
    await linkOrCopy(await localCopies.localPath(image.path), heldImagePath(folder));
    await snapshots.complete(id, {
      kind: memory === undefined ? 'disk' : 'full',
      vmId,
      manifest: image.digest,
      image: image.config,
      noChanges: false,
      diskBytes: await topBytes(content),
      scratchBytes: chain.bytes,
      ...(memory && {
        memory: {
          shape: memory.shape,
          vmm: memory.vmm,
          hostCpu: memory.hostCpu,
          accelerator: memory.accelerator,
          ...(await describeMemory(folder, platform.driver)),
        },
      }),
    });
  } catch (error) {
    await snapshots.abandon(id).catch(() => undefined);
    throw explainFullDisk(error, folder, 'the sandbox');
  }
}

/** The suspend image in a folder; undefined when there is none, or none that any host could resume. */
async function memoryOf(keep: string, platform: Platform): Promise<Suspension | undefined> {
  const image = new SuspendImage(keep);
  const suspension = await image.read();
  if (suspension === undefined) return undefined;
  try {
    await image.check(platform);
  } catch (error) {
    if (error instanceof NotResumableError) return undefined;
    // Another host may be able to resume what this one cannot.
    if (!(error instanceof MemoryBlockedError)) throw error;
  }
  return suspension;
}
