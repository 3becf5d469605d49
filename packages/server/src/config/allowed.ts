import type { Variable } from './variables.ts';

/** Describes the allowed values of a variable, for error messages and the documentation. */
export function allowed(variable: Variable): string {
  const schema = variable.schema as {
    type?: string;
    enum?: readonly string[];
    expected?: string;
    minimum?: number;
    maximum?: number;
    maxLength?: number;
    items?: { enum?: readonly string[] };
  };
  if (schema.expected !== undefined) return schema.expected;
  if (schema.enum) return `one of ${schema.enum.join(', ')}`;
  if (schema.type === 'array')
    return `a list of ${schema.items?.enum?.join(', ') ?? 'names'}, separated by commas, or none`;
  if (schema.type === 'integer' || schema.type === 'number') {
    const kind = schema.type === 'integer' ? 'a whole number' : 'a number';
    if (schema.maximum !== undefined) return `${kind} from ${schema.minimum ?? 0} to ${schema.maximum}`;
    return schema.minimum === undefined ? kind : `${kind}, at least ${schema.minimum}`;
  }
  return schema.maxLength === undefined ? 'a text' : `a text of at most ${schema.maxLength} characters`;
}
