/** Schemas for kubeconform from the OpenAPI document of an API server: those that it downloads are made of the same. */
import { mkdir, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import type { KubeApiServer } from './kube-apiserver.ts';

type Schema = Record<string, unknown>;

/**
 * Writes the manifests to a file, and the schemas of their kinds to a folder, as `KIND-VERSION.json` in lower case.
 * @param use gets both; they are removed after it
 */
export async function withSchemas(
  api: KubeApiServer,
  manifests: readonly string[],
  use: (folder: string, file: string) => void,
): Promise<void> {
  const folder = await temporaryFolder('releap-schemas-');
  try {
    const { body } = await api.call('GET', '/openapi/v2');
    const definitions = body['definitions'] as Record<string, Schema>;
    for (const manifest of manifests) {
      const [, apiVersion = ''] = /^apiVersion: (\S+)$/m.exec(manifest) ?? [];
      const [, kind = ''] = /^kind: (\S+)$/m.exec(manifest) ?? [];
      const [group, version] = apiVersion.includes('/') ? apiVersion.split('/') : ['', apiVersion];
      const found = Object.values(definitions).find((definition) =>
        (
          definition['x-kubernetes-group-version-kind'] as
            | { group: string; version: string; kind: string }[]
            | undefined
        )?.some((one) => one.group === group && one.version === version && one.kind === kind),
      );
      if (found === undefined) throw new Error(`the API server has no schema of ${apiVersion} ${kind}`);
      const schema = strict(found, definitions);
      await writeFile(path.join(folder, `${kind.toLowerCase()}-${version}.json`), JSON.stringify(schema));
    }
    const file = path.join(folder, 'manifests', 'all.yaml');
    await mkdir(path.dirname(file));
    await writeFile(file, manifests.map((text) => `---\n${text}`).join(''));
    use(folder, file);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** With what it refers to in its place, and no unknown fields. Kinds of this chart refer to no definition within itself. */
function strict(schema: Schema, definitions: Record<string, Schema>): Schema {
  const { $ref: reference } = schema;
  if (typeof reference === 'string')
    return strict(definitions[reference.replace('#/definitions/', '')] ?? {}, definitions);
  // An amount, or a port: the document says "string" and what it really is in its format.
  if (schema['format'] === 'int-or-string') return { anyOf: [{ type: 'string' }, { type: 'integer' }] };
  const { description } = schema;
  if (typeof description === 'string' && QUANTITY.test(description))
    return { anyOf: [{ type: 'string' }, { type: 'number' }] };
  const { properties, items, additionalProperties } = schema as {
    properties?: Record<string, Schema>;
    items?: Schema;
    additionalProperties?: Schema;
  };
  const { description: _, ...rest } = schema;
  return {
    ...rest,
    ...(properties !== undefined && {
      properties: Object.fromEntries(
        Object.entries(properties).map(([name, one]) => [name, strict(one, definitions)]),
      ),
      additionalProperties: false,
    }),
    ...(items !== undefined && { items: strict(items, definitions) }),
    ...(additionalProperties !== undefined && {
      additionalProperties: strict(additionalProperties, definitions),
    }),
  };
}

const QUANTITY = /^Quantity is a fixed-point representation of a number/;
