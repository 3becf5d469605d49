/**
 * `rlp image prune`: deletes images that are of no use. Always: those whose build has failed and that were never built
 * before. With --unused: those too that no sandbox of the project was created from and that are not being built.
 */
import type { ImageRecord } from '@releap/contract';
import { hasStatus, listImages, type Service } from '@releap/sdk';
import { usageError } from '../cli-error.ts';
import { EXIT } from '../exit-codes.ts';
import { confirm } from '../input/confirm.ts';
import { age, size, table } from '../output/table.ts';
import { openService } from '../service.ts';
import { type Context, print, printJson, remark } from '../terminal.ts';

export interface PruneOptions {
  unused?: boolean;
  dryRun?: boolean;
  yes?: boolean;
}

interface Pruned {
  image: ImageRecord;
  why: 'failed' | 'unused';
}

export async function pruneImages(context: Context, options: PruneOptions): Promise<number> {
  const service = openService(context);
  const found = await prunable(service, options.unused === true);
  if (found.length === 0) {
    if (context.options.json) printJson(context, []);
    else remark(context, 'nothing to delete');
    return EXIT.ok;
  }
  if (options.dryRun === true) {
    show(context, found, 'would be deleted');
    return EXIT.ok;
  }
  if (options.yes !== true) {
    if (context.options.json || !context.terminal.stdin.isTTY)
      throw usageError(`${count(found)} would be deleted: give --yes to delete, or --dry-run to see them`);
    show(context, found, 'to be deleted');
    if (!(await confirm(context, `Delete ${count(found)}?`))) return EXIT.failed;
  }
  const deleted: Pruned[] = [];
  for (const one of found) if (await remove(service, one.image)) deleted.push(one);
  if (context.options.json) show(context, deleted, 'deleted');
  else for (const { image } of deleted) print(context, image.name);
  return EXIT.ok;
}

async function prunable(service: Service, unused: boolean): Promise<Pruned[]> {
  const used = new Set<string>();
  // Read before the images: one that is used meanwhile was posted before.
  if (unused) for await (const { image_ref: name } of service.sandboxes()) used.add(name);
  const found: Pruned[] = [];
  for await (const image of listImages(service)) {
    if (image.source.type === 'builtin') continue;
    const built = image.manifest_name !== undefined;
    if (image.status === 'failed' && !built) found.push({ image, why: 'failed' });
    else if (unused && image.status !== 'pending' && !used.has(image.name))
      found.push({ image, why: 'unused' });
  }
  return found;
}

/** By id: a name may have been posted again. @returns false for one that is gone already */
async function remove(service: Service, { id }: ImageRecord): Promise<boolean> {
  try {
    await service.api.deleteImage({ params: { id_or_name: id } });
    return true;
  } catch (error) {
    if (hasStatus(error, 404, 'image_not_found')) return false;
    throw error;
  }
}

function show(context: Context, found: readonly Pruned[], status: string): void {
  if (context.options.json)
    printJson(
      context,
      found.map(({ image, why }) => ({ image: image.name, image_id: image.id, why, status })),
    );
  else
    print(
      context,
      table(
        ['NAME', 'WHY', 'SIZE', 'AGE'],
        found.map(({ image, why }) => [
          image.name,
          why,
          size(image.bytes),
          age(image.built_at ?? image.created_at),
        ]),
      ),
    );
}

const count = ({ length }: readonly unknown[]): string => `${length} image${length === 1 ? '' : 's'}`;
