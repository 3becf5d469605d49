/** What `releap backup` and `releap restore` need of the control plane. */
export {
  type HostContent,
  hostContents,
  lostContents,
  type LostContent,
  missingBlobs,
  REFERENCED_BLOBS,
  type ReferencedBlob,
  regionBuckets,
} from './compute/hosts/losses.ts';
export { disconnectHosts } from './fleet/runners/operator-marks.ts';
export { KEY_BYTES, seal, unseal } from './platform/encryption/aes-gcm.ts';
export type { BlobStore } from './storage/artifacts/blob-store.ts';
export { openStore } from './storage/artifacts/open-store.ts';
