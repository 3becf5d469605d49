import { Type } from 'typebox';

/** Earlier versions leave it out. */
export const UpdatedAt = Type.String({
  format: 'date-time',
  description: 'When its record was changed last, by a request or by the service.',
});
