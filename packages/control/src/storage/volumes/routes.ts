import { operations } from '@releap/contract';
import type { Planes } from '../../platform/http/planes.ts';
import { projectRoute } from '../../tenancy/management/project-routes.ts';
import { requestCommit, type CommitRequestContext } from './commit-request.ts';
import { listManifests, restoreVolume } from './history.ts';
import type { Volumes } from './volumes.ts';

export function volumeRoutes(
  planes: Planes,
  { volumes, ...context }: CommitRequestContext & { volumes: Volumes },
): void {
  const { database } = context;
  const route = projectRoute(planes, database);
  route(operations.createVolume, operations.createProjectVolume, ({ project, body, ids }) =>
    volumes.create(project, body, ids),
  );
  route(operations.listVolumes, operations.listProjectVolumes, ({ project, query }) =>
    volumes.list(project.id, query),
  );
  route(operations.getVolume, operations.getProjectVolume, ({ project, ref }) =>
    volumes.get(project.id, ref),
  );
  route(operations.deleteVolume, operations.deleteProjectVolume, ({ project, ref }) =>
    volumes.remove(project, ref),
  );
  route(operations.listVolumeManifests, operations.listProjectVolumeManifests, ({ project, ref, query }) =>
    listManifests(database, project.id, ref, query),
  );
  route(operations.restoreVolume, operations.restoreProjectVolume, async ({ project, ref, body }) => {
    await restoreVolume(context, project, ref, body.manifest_id);
    return await volumes.get(project.id, ref);
  });
  route(operations.commitVolume, operations.commitProjectVolume, async ({ project, ref, abortSignal }) => {
    await requestCommit(context, project, ref, abortSignal());
    return await volumes.get(project.id, ref);
  });
}
