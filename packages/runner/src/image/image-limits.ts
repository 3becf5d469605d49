import { IMAGE_CACHE_MIB } from '@releap/contract';
import type { PullQueueLimits } from './pull-queue.ts';

/** What an image may cost us. Content is hostile: every number an image states is checked against one of these. */
export interface ImageLimits {
  /** Most layers in one image. */
  layers: number;
  /** Sum of the layers' sizes as stored in the registry, bytes. */
  compressedBytes: number;
  /** Sum of all layers as tar archives, and of all files in the merged result (holes counted in full), bytes. */
  uncompressedBytes: number;
  /** One file's apparent size, bytes. */
  fileBytes: number;
  /** Entries in all layers together, and files and folders in the result. */
  entries: number;
  /** One path, bytes (Linux PATH_MAX). */
  pathBytes: number;
  /** One name within a folder, bytes (Linux NAME_MAX). */
  nameBytes: number;
  /** Names, link targets and extended attributes of all entries together, bytes: they are held in memory. */
  metadataBytes: number;
  /** One manifest, index or image configuration, bytes. */
  manifestBytes: number;
  /** Asking a registry what a tag is, milliseconds. */
  resolveMs: number;
  /** Fetching all layers, milliseconds. */
  pullMs: number;
  /** Merging the layers and writing the root image, milliseconds. */
  makeMs: number;
  /** How long a tag's digest is believed without asking again, milliseconds. */
  resolutionTtlMs: number;
  /** Most bytes of finished root images kept; the least recently used go first. */
  cacheBytes: number;
  /** Most bytes of unpacked layers kept for other images that share them. */
  layerBytes: number;
  /** An image with fewer bytes of layers of that size is made as one file. */
  stackBytes: number;
  /** Smaller layers are copied into the image. */
  stackLayerBytes: number;
  /** Most layers of an image that are parts of its disk: a VMM opens a file for each. */
  stackLayers: number;
  /** A registry that sends nothing for so long is given up on, milliseconds. */
  stallMs: number;
  /** So is one that sends less than this in that time, bytes. */
  stallBytes: number;
  /** How many images may be merged and written at the same time. */
  parallelMakes: number;
  /** Who may fetch at the same time, and how many may wait. */
  pulls: PullQueueLimits;
}

const KIB = 1024;
const MIB = 1024 * KIB;
const GIB = 1024 * MIB;

export const DEFAULT_IMAGE_LIMITS: Readonly<ImageLimits> = {
  layers: 128,
  compressedBytes: 16 * GIB,
  uncompressedBytes: 32 * GIB,
  fileBytes: 16 * GIB,
  entries: 1_000_000,
  pathBytes: 4096,
  nameBytes: 255,
  metadataBytes: 256 * MIB,
  manifestBytes: 4 * MIB,
  resolveMs: 30_000,
  pullMs: 15 * 60_000,
  makeMs: 15 * 60_000,
  resolutionTtlMs: 60_000,
  cacheBytes: IMAGE_CACHE_MIB.images * MIB,
  layerBytes: IMAGE_CACHE_MIB.layers * MIB,
  stackBytes: 32 * MIB,
  stackLayerBytes: 4 * MIB,
  stackLayers: 8,
  stallMs: 30_000,
  stallBytes: 512 * KIB,
  parallelMakes: 2,
  pulls: { total: 8, perProject: 2, perHost: 4, waiting: 256, waitingPerProject: 64 },
};
