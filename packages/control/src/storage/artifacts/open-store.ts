import { join } from 'node:path';
import type { BlobStore } from './blob-store.ts';
import { FolderStore } from './folder-store.ts';
import type { S3StoreOptions } from './s3-store.ts';

/** Where the deployment stores images, snapshots and build contexts. */
export type StoreOptions =
  | { type: 'folder'; path: string }
  | ({ type: 's3' } & Pick<
      S3StoreOptions,
      'bucket' | 'prefix' | 'endpoint' | 'region' | 'credentials' | 'spoolFolder'
    >);

/**
 * Opens the store. Its content lies below the deployment's id, so that two deployments with the same folder or bucket do
 * not remove each other's blobs.
 */
export async function openStore(
  options: StoreOptions,
  deploymentId: string,
): Promise<BlobStore & { close?(): void }> {
  if (options.type === 'folder') return new FolderStore(join(options.path, deploymentId));
  // Loaded only when it is used: the SDK takes time and memory.
  const { S3Store } = await import('./s3-store.ts');
  const { prefix } = options;
  return new S3Store({ ...options, prefix: `${prefix === '' ? '' : `${prefix}/`}${deploymentId}` });
}
