// Nothing of it is used; a real toolkit has it, and programs look for it before they start.
