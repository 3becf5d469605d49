import {
  clampLimit,
  cursorPosition,
  IMAGE_CURSORS,
  nextCursor,
  operations,
  resolveImageCreate,
} from '@releap/contract';
import type { ImageCreateResponse, ImageList } from '@releap/contract';
import type { Database } from '@releap/database';
import type { Planes } from '../http/planes.ts';
import type { Regions } from '../regions/regions.ts';
import type { Scheduler } from '../scheduler/scheduler.ts';
import type { BuildQueue } from './build-queue.ts';
import { listImages, putImage } from './images.ts';

export interface ImageRoutes {
  database: Database;
  regions: Regions;
  scheduler: Scheduler;
  builds: BuildQueue;
}

/** A build needs a region with a ready host, and no capacity of it. */
const ANYTHING = {
  arch: null,
  cpu: 0,
  mem_mib: 0,
  disk_mib: 0,
  gpus: 0,
  requiredRunnerId: null,
  overcommitted: false,
};

export function imageRoutes(
  { workload }: Planes,
  { database, regions, scheduler, builds }: ImageRoutes,
): void {
  workload.operation(
    operations.createImage,
    async ({ body, principal, ids }): Promise<ImageCreateResponse> => {
      const image = resolveImageCreate(body);
      const region = await regions.resolve(
        image.region,
        principal,
        scheduler.regionWithMostCapacity(ANYTHING),
      );
      const { imageId, jobId } = await putImage(database, principal.projectId, image, region, ids);
      builds.kick();
      return { image_id: imageId, job_id: jobId, name: image.name, status: 'pending', region };
    },
  );

  workload.operation(operations.listImages, async ({ query, principal }): Promise<ImageList> => {
    const after = cursorPosition(IMAGE_CURSORS, query.cursor);
    const { images, last } = await listImages(database, principal.projectId, clampLimit(query.limit), after);
    return { images, next_cursor: nextCursor(IMAGE_CURSORS, last) };
  });
}
