/**
 * Our schemas as OpenAPI 3.1 has them. Generators of clients make `any` of what they cannot name: an enum without a type, a map
 * by patterns, a union without a discriminator. Validation does not need these, so they are added here and not in the
 * schemas. Pure.
 */
import type { TSchema } from 'typebox';
import type { SchemaNode } from './rules/http/describe-schema.ts';

export type Json = Record<string, unknown>;

/** Makes schemas of a document. */
export class SchemaWriter {
  /** Named schemas; their occurrences become references. */
  readonly #names: ReadonlyMap<unknown, string>;

  constructor(names: ReadonlyMap<unknown, string>) {
    this.#names = names;
  }

  /** A plain JSON copy, with named schemas as references and without our annotations. */
  schema(schema: TSchema): Json {
    return this.#node(schema, false);
  }

  /** The schemas under their names. */
  components(): Json {
    return Object.fromEntries(
      [...this.#names].map(([schema, name]) => [name, this.#node(schema as TSchema, true)]),
    );
  }

  #node(schema: SchemaNode, isComponent: boolean): Json {
    const name = isComponent ? undefined : this.#names.get(schema);
    if (name !== undefined) return { $ref: `#/components/schemas/${name}` };
    const { expected: _, openapi, properties, items, anyOf, patternProperties, ...rest } = schema;
    const plain = { ...(JSON.parse(JSON.stringify(rest)) as Json), ...openapi };
    delete plain['refusal'];
    // One member that takes any value makes the others mean nothing.
    if (
      anyOf?.some((member) =>
        Object.keys(this.#node(member, false)).every((key) => key === 'description'),
      ) === true
    )
      return plain;
    if (anyOf !== undefined) return { ...plain, ...this.#union(anyOf) };
    if (schema.enum !== undefined || schema.const !== undefined)
      plain['type'] ??= typeOf(schema.enum?.[0] ?? schema.const);
    const format = numberFormat(schema);
    if (format !== undefined) plain['format'] ??= format;
    if (properties !== undefined)
      plain['properties'] = Object.fromEntries(
        Object.entries(properties).map(([key, child]) => [key, this.#node(child, false)]),
      );
    if (items !== undefined) plain['items'] = this.#node(items, false);
    // The keys of our maps are any strings.
    const values = Object.values(patternProperties ?? {})[0];
    if (values !== undefined) plain['additionalProperties'] = this.#node(values, false);
    return plain;
  }

  /** Objects that one of their fields tells apart get a discriminator, if they have names; the others are alternatives beside. */
  #union(members: readonly SchemaNode[]): Json {
    const named = members.filter((member) => member.type === 'object' && this.#names.has(member));
    const property = named.length > 1 ? discriminatorOf(named) : undefined;
    if (property === undefined) return { anyOf: members.map((member) => this.#node(member, false)) };
    const union = {
      oneOf: named.map((member) => this.#node(member, false)),
      discriminator: {
        propertyName: property,
        mapping: Object.fromEntries(
          named.map((member) => [
            String(member.properties?.[property]?.const),
            `#/components/schemas/${this.#names.get(member)}`,
          ]),
        ),
      },
    };
    const others = members.filter((member) => !named.includes(member));
    if (others.length === 0) return union;
    return { anyOf: [...others.map((member) => this.#node(member, false)), union] };
  }
}

/** The required property that has another constant in each of the objects. */
function discriminatorOf(members: readonly SchemaNode[]): string | undefined {
  const [first] = members;
  return Object.keys(first?.properties ?? {}).find((key) => {
    const constants = members.map((member) =>
      member.required?.includes(key) === true ? member.properties?.[key]?.const : undefined,
    );
    return (
      constants.every((value) => typeof value === 'string') && new Set(constants).size === members.length
    );
  });
}

const INT32 = { min: -(2 ** 31), max: 2 ** 31 - 1 };

function numberFormat({ type, minimum, maximum }: SchemaNode): string | undefined {
  if (type === 'number') return 'double';
  if (type !== 'integer') return undefined;
  const isSmall =
    minimum !== undefined && maximum !== undefined && minimum >= INT32.min && maximum <= INT32.max;
  return isSmall ? 'int32' : 'int64';
}

function typeOf(value: unknown): string {
  if (typeof value === 'number') return Number.isInteger(value) ? 'integer' : 'number';
  return typeof value;
}
