/** Functions of a world, small enough for its hosts. */
import type { World } from '@releap/testing/world';
import { newFunction, newVersion, type FunctionFields, type FunctionRow } from './functions.ts';

type Fields = FunctionFields & { project?: string };
const SMALL = { memMib: 256, scratchMib: 64 };

/** A function with one version. */
export async function insertFunction(world: World, fields: Fields = {}): Promise<FunctionRow> {
  return await newFunction(world.database, fields.project ?? world.call.projectId, { ...SMALL, ...fields });
}

/** @returns its id; a later version becomes current */
export async function insertVersion(
  world: World,
  id: string,
  version: number,
  fields: Fields = {},
): Promise<string> {
  const of = { id, projectId: fields.project ?? world.call.projectId };
  const versionId = await newVersion(world.database, of, { ...SMALL, ...fields, version });
  if (version > 1 && fields.current !== false)
    await world.database.pool.query(
      'update functions set current_version = $2, latest_version = $2, revision = revision + 1 where id = $1',
      [id, version],
    );
  return versionId;
}
