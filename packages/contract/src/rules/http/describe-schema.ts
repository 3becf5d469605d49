/** Describes a JSON schema in words, for error messages and the reference pages. Pure. */

/** The keywords of JSON schema that our schemas use, with three annotations: `expected` describes the allowed values in
 * words; `openapi` is added in OpenAPI documents, and not validated; `writeOnly` (standard) marks a value that must never be shown. */
export interface SchemaNode {
  type?: string;
  properties?: Record<string, SchemaNode>;
  required?: string[];
  items?: SchemaNode;
  anyOf?: SchemaNode[];
  patternProperties?: Record<string, SchemaNode>;
  enum?: unknown[];
  const?: unknown;
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
  minLength?: number;
  maxLength?: number;
  maxItems?: number;
  pattern?: string;
  default?: unknown;
  description?: string;
  expected?: string;
  openapi?: Record<string, unknown>;
  writeOnly?: boolean;
}

/** The allowed values, as the end of the sentence `<field> must be …`. */
export function describeSchema(node: SchemaNode): string {
  if (node.expected !== undefined) return node.expected;
  if (node.anyOf) return node.anyOf.map((one) => describeSchema(one)).join(' or ');
  if (node.enum) return listOf(node.enum);
  if (node.const !== undefined) return JSON.stringify(node.const);
  switch (node.type) {
    case 'integer':
      return `an integer${describeRange(node)}`;
    case 'number':
      return `a number${describeRange(node)}`;
    case 'boolean':
      return 'true or false';
    case 'string':
      return describeString(node);
    case 'array':
      return node.maxItems === undefined ? 'an array' : `an array of at most ${node.maxItems} items`;
    case 'null':
      return 'null';
    case 'object':
      return 'an object';
    default:
      return 'any JSON value';
  }
}

function listOf(values: unknown[]): string {
  const words = values.map((value) => JSON.stringify(value));
  return words.length === 1 ? words.join('') : `one of ${words.join(', ')}`;
}

function describeRange(node: SchemaNode): string {
  if (node.exclusiveMinimum !== undefined) return ` greater than ${node.exclusiveMinimum}`;
  if (node.minimum !== undefined && node.maximum !== undefined)
    return ` from ${node.minimum} to ${node.maximum}`;
  if (node.minimum !== undefined) return ` of at least ${node.minimum}`;
  if (node.maximum !== undefined) return ` of at most ${node.maximum}`;
  return '';
}

function describeString(node: SchemaNode): string {
  if (node.pattern !== undefined) return `a string that matches ${node.pattern}`;
  const filled = (node.minLength ?? 0) > 0;
  if (node.maxLength !== undefined)
    return filled
      ? `a string of ${node.minLength} to ${node.maxLength} characters`
      : `a string of at most ${node.maxLength} characters`;
  return filled ? 'a non-empty string' : 'a string';
}
