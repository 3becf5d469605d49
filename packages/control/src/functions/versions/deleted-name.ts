/** Whether a function is deleted. Its name is then the former one, a `/` and its id. */
export const IS_DELETED = (fn: string): string => `position('/' in ${fn}.name) > 0`;
export const isDeletedName = (name: string): boolean => name.includes('/');
