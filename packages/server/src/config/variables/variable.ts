import { Type, type TSchema } from 'typebox';

/** One environment variable. */
export interface Variable<S extends TSchema = TSchema> {
  schema: S;
  /** The default; a description if it depends on something. */
  default?: string | number | readonly string[];
  defaultText?: string;
  unit?: string;
  /** Its value is never shown. */
  secret?: boolean;
  description: string;
  group:
    | 'Where things are'
    | 'Network'
    | 'Certificate of previews'
    | 'Database'
    | 'The store'
    | 'Credentials'
    | 'This machine'
    | 'The service'
    | 'Signing in'
    | 'Billing'
    | 'Limits'
    | 'Traces'
    | 'Log';
}

export const variable = <S extends TSchema>(value: Variable<S>): Variable<S> => value;

export const AbsolutePath = Type.String({ pattern: '^/[^\\0]*$', expected: 'an absolute path' });

export const Port = Type.Integer({ minimum: 0, maximum: 65_535 });

export const HttpUrl = Type.String({
  pattern: '^https?://[^\\s/?#]+[^\\s?#]*$',
  expected: 'an http:// or https:// URL without query',
});

export const Positive = Type.Integer({ minimum: 1 });
