import { operations, type VolumeDetail } from '@releap/contract';
import type { Planes } from '../../platform/http/planes.ts';
import { scopeOfKey, scopeOfMember, type ProjectScope } from '../../tenancy/management/project-scope.ts';
import { requestCommit, type CommitRequestContext } from './commit-request.ts';
import { listManifests, restoreVolume } from './history.ts';
import type { Volumes } from './volumes.ts';

export function volumeRoutes(
  { workload, management }: Planes,
  { volumes, ...context }: CommitRequestContext & { volumes: Volumes },
): void {
  const { database } = context;
  const restore = async (project: ProjectScope, ref: string, manifestId: string): Promise<VolumeDetail> => {
    await restoreVolume(context, project, ref, manifestId);
    return volumes.get(project.id, ref);
  };
  const commit = async (project: ProjectScope, ref: string, signal: AbortSignal): Promise<VolumeDetail> => {
    await requestCommit(context, project, ref, signal);
    return volumes.get(project.id, ref);
  };

  workload.operation(operations.createVolume, ({ body, principal, ids }) =>
    volumes.create(scopeOfKey(principal), body, ids),
  );
  workload.operation(operations.listVolumes, ({ query, principal }) =>
    volumes.list(principal.projectId, query),
  );
  workload.operation(operations.getVolume, ({ params, principal }) =>
    volumes.get(principal.projectId, params.id_or_name),
  );
  workload.operation(operations.deleteVolume, ({ params, principal }) =>
    volumes.remove(scopeOfKey(principal), params.id_or_name),
  );

  workload.operation(operations.listVolumeManifests, ({ params, query, principal }) =>
    listManifests(database, principal.projectId, params.id_or_name, query),
  );
  workload.operation(operations.restoreVolume, ({ params, body, principal }) =>
    restore(scopeOfKey(principal), params.id_or_name, body.manifest_id),
  );
  workload.operation(operations.commitVolume, ({ params, principal, abortSignal }) =>
    commit(scopeOfKey(principal), params.id_or_name, abortSignal()),
  );

  management.operation(operations.createProjectVolume, async ({ params, body, caller, ids }) =>
    volumes.create(await scopeOfMember(database, caller, params.id), body, ids),
  );
  management.operation(operations.listProjectVolumes, async ({ params, query, caller }) =>
    volumes.list((await scopeOfMember(database, caller, params.id)).id, query),
  );
  management.operation(operations.getProjectVolume, async ({ params, caller }) =>
    volumes.get((await scopeOfMember(database, caller, params.id)).id, params.name),
  );
  management.operation(operations.deleteProjectVolume, async ({ params, caller }) =>
    volumes.remove(await scopeOfMember(database, caller, params.id), params.name),
  );
  management.operation(operations.listProjectVolumeManifests, async ({ params, query, caller }) =>
    listManifests(database, (await scopeOfMember(database, caller, params.id)).id, params.name, query),
  );
  management.operation(operations.restoreProjectVolume, async ({ params, body, caller }) =>
    restore(await scopeOfMember(database, caller, params.id), params.name, body.manifest_id),
  );
  management.operation(operations.commitProjectVolume, async ({ params, caller, abortSignal }) =>
    commit(await scopeOfMember(database, caller, params.id), params.name, abortSignal()),
  );
}
