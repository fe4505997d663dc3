/* The page for an unknown id needs no script. */
export {};
